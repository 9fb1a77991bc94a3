// The messages of a queue, which are shown without being taken.

import { get } from './client.js';
import { badge, button, fill, h, link, pairs, place } from './dom.js';
import { bytes, count, instant, json, left } from './format.js';
import { Table } from './table.js';
import { dialog, section } from './view.js';

const states = [['ready', 'Ready'], ['unacked', 'Unacknowledged'], ['scheduled', 'Scheduled'], ['delayed', 'Waiting for a retry'], ['deferred', 'Deferred']];
const size = 50; // messages on a page
const preview = 120, whole = 65536; // bytes of a body that are asked for

export function messages(view, body, at, of) {
  let after = 0, next = 0;
  const choice = h('select', { 'aria-label': 'State of messages', on: { change: () => { after = 0; view.refresh(); } } }, states.map(([value, label]) => h('option', { value }, label)));
  const first = button('First', () => { after = 0; view.refresh(); });
  const forth = button('Next', () => { after = next; view.refresh(); });
  const table = new Table('Messages', [
    { title: 'Number', number: true, show: (m) => count(m.number) },
    { title: 'Routing key', show: (m) => m.routing_key },
    { title: 'Message id', minor: true, show: (m) => m.properties.message_id ?? '–' },
    { title: 'Expires', show: (m) => left(m.expires_at) },
    { title: 'Due', show: (m) => left(m.due_at) },
    { title: 'Held until', show: (m) => left(m.deadline) },
    { title: 'Failed', number: true, minor: true, show: (m) => count(m.delivery_count) },
    { title: 'Size', number: true, minor: true, show: (m) => bytes(m.payload_bytes) },
    { title: 'Payload', show: (m) => h('code', { class: 'payload' }, m.payload_encoding === 'string' ? m.payload : `base64 ${m.payload}`, m.payload_bytes > preview && '…') },
    { title: 'Actions', show: (m) => button('Show', () => show(at, m, of)) },
  ], (m) => `${m.state} ${m.number}`, { empty: 'There are no such messages.' });
  fill(body, section('Messages', h('div', { class: 'controls' }, choice, h('span', { class: 'pages' }, first, forth)), table.element,
    h('p', null, h('small', null, 'Messages are only looked at: they stay where they are, and do not count as delivered.'))));
  view.every(async () => {
    const page = await get(`${at}/messages/peek`, { state: choice.value, limit: size, after, truncate: preview }, { signal: view.signal });
    next = page.next;
    table.show(page.items);
    first.disabled = after === 0;
    forth.disabled = next === 0;
  });
}

// show shows all of a message.
async function show(at, m, of) {
  const content = h('div', null, 'Reading …');
  dialog(`Message ${m.number}`, content, 'Close', () => true, { wide: true });
  try {
    const page = await get(`${at}/messages/peek`, { state: m.state, limit: 1, after: m.number - 1, truncate: whole });
    const x = page.items[0];
    if (x?.number !== m.number) {
      fill(content, 'The message is not there any more.');
      return;
    }
    const { headers, ...properties } = x.properties;
    fill(content, pairs([
      ['State', badge(x.state)], ['Exchange', x.exchange || '(default)'], ['Routing key', x.routing_key], ['Expires', x.expires_at ? instant(x.expires_at) : ''], ['Due', x.due_at ? instant(x.due_at) : ''],
      ['Held until', x.deadline ? instant(x.deadline) : ''], ['Handed out', count(x.acquired_count)], ['Failed', count(x.delivery_count)], ['Schedule id', x.schedule_id], ['Deferral token', x.deferral_token],
      ...Object.entries(properties).map(([name, value]) => [name, h('code', null, typeof value === 'string' ? value : json(value))]),
      ...Object.entries(headers ?? {}).map(([name, value]) => [`header ${name}`, h('code', null, json(value))]),
    ]), h('h3', null, `Payload, ${bytes(x.payload_bytes)}${x.payload_encoding === 'base64' ? ', in base64' : ''}${x.payload_bytes > whole ? `, the first ${bytes(whole)}` : ''}`),
    h('pre', { tabindex: '0', 'aria-label': 'Payload' }, x.payload), h('p', null, link(place('queue', of.vhost, of.name, 'ended', String(x.number)), 'What happened to it')));
  } catch (failure) {
    fill(content, failure.message);
  }
}
