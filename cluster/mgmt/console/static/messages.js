// The messages of a queue, which are shown without being taken, or taken.

import { get, post } from './client.js';
import { badge, button, fill, h, link, pairs, place } from './dom.js';
import { bytes, count, instant, json, left } from './format.js';
import { Table } from './table.js';
import { dialog, field, input, section, select } from './view.js';

const states = [['ready', 'Ready'], ['unacked', 'Unacknowledged'], ['scheduled', 'Scheduled'], ['delayed', 'Waiting for a retry'], ['deferred', 'Deferred'], ['parked', 'Parked']];
const size = 50; // messages on a page
const preview = 120, whole = 65536; // bytes of a body that are asked for

// afterwards are the ways to settle messages that are taken.
const afterwards = [['ack_requeue_true', 'put them back'], ['ack_requeue_false', 'acknowledge: they are gone'], ['reject_requeue_false', 'reject: they become dead letters, or are gone'], ['reject_requeue_true', 'put them back as failed']];

const payload = (m) => h('code', { class: 'payload' }, m.payload_encoding === 'string' ? m.payload : `base64 ${m.payload}`, m.payload_bytes > preview && '…');

// ahead says what comes next of a message, and when.
const ahead = (m) => {
  const list = [['due', m.due_at], ['held, taken back', m.deadline], ['expires', m.expires_at]].filter(([, at]) => at);
  return list.length === 0 ? '–' : list.map(([what, at]) => h('div', null, `${what} `, left(at)));
};

export function messages(view, body, at, of) {
  let after = 0, next = 0;
  const got = h('div', { 'aria-live': 'polite' });
  const choice = h('select', { 'aria-label': 'State of messages', on: { change: () => { after = 0; view.refresh(); } } }, states.map(([value, label]) => h('option', { value }, label)));
  const first = button('First', () => { after = 0; view.refresh(); });
  const forth = button('Next', () => { after = next; view.refresh(); });
  const table = new Table('Messages', [
    { title: 'Number', number: true, show: (m) => count(m.number) },
    { title: 'Routing key', minor: true, show: (m) => m.routing_key },
    { title: 'Message id', minor: true, extra: true, show: (m) => m.properties.message_id ?? '–' },
    { title: 'Time', minor: true, show: ahead },
    { title: 'Failed', number: true, minor: true, show: (m) => count(m.delivery_count) },
    { title: 'Size', number: true, minor: true, show: (m) => bytes(m.payload_bytes) },
    { title: 'Payload', show: (m) => payload(m) },
    { title: 'Actions', show: (m) => button('Show', () => show(at, m, of)) },
  ], (m) => `${m.state} ${m.number}`, { empty: 'There are no such messages.' });
  fill(body, section('Messages', h('div', { class: 'controls' }, choice, button('Get', take), h('span', { class: 'pages' }, first, forth)), table.element,
    h('p', null, h('small', null, 'Messages are only looked at: they stay where they are, and do not count as delivered. Only Get takes them.'))), got);
  function take() {
    return dialog(`Get messages of ${of.name}`, [
      field('Messages', input('count', { required: true, inputmode: 'numeric', pattern: '[1-9][0-9]{0,2}', value: '1' }), 'At most 999'), field('Then', select('ackmode', afterwards)),
    ], 'Get', async (f) => {
      const list = await post(`${at}/get`, { count: Number(f.count.value), ackmode: f.ackmode.value, encoding: 'auto', truncate: preview });
      fill(got, section('Got', list.length === 0 ? h('p', null, 'No message was ready.') : h('ol', null, list.map((m) => h('li', null, h('code', null, m.routing_key), m.redelivered && badge('redelivered'), ' ', h('small', null, bytes(m.payload_bytes)), ' ', payload(m))))));
      view.refresh();
      return true;
    }, { danger: true });
  }
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
