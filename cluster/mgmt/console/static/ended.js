// Messages that ended otherwise than by an acknowledgement, and what happened to one.

import { get } from './client.js';
import { badge, button, fill, h, link, place } from './dom.js';
import { ago, count, duration, instant } from './format.js';
import { Table } from './table.js';
import { field, input, section, select } from './view.js';

const reasons = ['', 'expired', 'group_expired', 'rejected', 'delivery_limit', 'maxlen', 'maxhops', 'unroutable', 'cancelled', 'replaced', 'forwarded', 'purged', 'queue_deleted'];
const size = 100; // records on a page

export function ended(view, body, at, { vhost, name }) {
  let after, next;
  const choice = select('reason', reasons.map((r) => [r, r || 'any reason']), '');
  const id = input('id', { placeholder: 'message id' });
  choice.addEventListener('change', narrow);
  const first = button('First', () => { after = undefined; view.refresh(); });
  const forth = button('Next', () => { after = next; view.refresh(); });
  const life = h('div', { 'aria-live': 'polite' });
  const table = new Table('Records of ends', [
    { title: 'When', show: (e) => ago(e.at) },
    { title: 'Reason', show: (e) => badge(e.reason, e.reason === 'forwarded' ? 'good' : 'warn') },
    { title: 'Message', number: true, show: (e) => (e.message ? count(e.message) : `${count(e.count)} at once`) },
    { title: 'Message id', show: (e) => e.message_id ?? '–' },
    { title: 'Was there for', number: true, minor: true, show: (e) => (e.enqueued_at ? duration(e.at - e.enqueued_at) : '–') },
    { title: 'Time to live', number: true, minor: true, show: (e) => (e.ttl ? duration(e.ttl) : '–') },
    { title: 'Handed out', number: true, minor: true, show: (e) => count(e.acquired_count) },
    { title: 'Consumer', minor: true, show: (e) => e.consumer_tag ?? '–' },
    { title: 'Dead letter', show: (e) => [e.letter_state ?? '–', (e.arrivals ?? []).map((a) => [' ', link(place('queue', vhost, a.queue), a.queue)])] },
    { title: 'Entry', number: true, minor: true, show: (e) => count(e.index) },
    { title: 'Actions', show: (e) => e.message && button('Explain', () => explain({ message: e.message })) },
  ], (e) => String(e.number), { empty: 'The queue remembers no such end.' });
  fill(body, section('What happened to a message', h('form', { class: 'controls', on: { submit } }, field('Message id', id), h('button', { type: 'submit' }, 'Explain')), life),
    section('Ended', h('div', { class: 'controls' }, h('label', { class: 'field' }, h('span', null, 'Reason'), choice), h('span', { class: 'pages' }, first, forth)), table.element));

  function narrow() {
    after = undefined;
    view.refresh();
  }
  function submit(event) {
    event.preventDefault();
    if (id.value !== '') explain({ message_id: id.value });
  }
  async function explain(query) {
    fill(life, h('p', null, 'Reading the log …'));
    try {
      fill(life, lives(await get(`${at}/explain`, query, { signal: view.signal })));
    } catch (failure) {
      fill(life, h('p', { class: 'notice bad' }, failure.message));
    }
  }
  const number = decodeURIComponent(location.hash).split('/').at(-1);
  if (/^[1-9][0-9]*$/.test(number) && location.hash === place('queue', vhost, name, 'ended', number)) explain({ message: number });
  view.every(async () => {
    const page = await get(`${at}/deaths`, { reason: choice.value, limit: size, after }, { signal: view.signal });
    next = page.next;
    table.show(page.items);
    first.disabled = after === undefined;
    forth.disabled = !next;
  });
}

// lives tells the lives of messages, as the log has them.
function lives(x) {
  const intro = h('p', null, `By the replica on node ${x.node}, entries ${count(x.from_index)} to ${count(x.to_index)}.`);
  if (x.lives.length === 0) return [intro, h('p', null, 'No trace of such a message: it never reached this queue, or it was settled and forgotten before the first of these entries.')];
  return [intro, x.lives.map((l) => h('article', { class: 'life' },
    h('h3', null, `Message ${l.message ?? '–'}: ${l.state}`), h('ol', null, l.events.map((e) => h('li', null, h('code', null, instant(e.at)), ` entry ${e.index}: `, h('strong', null, e.event), e.why && ` (${e.why})`,
      e.consumer_tag && ` consumer ${e.consumer_tag}`, e.session && ` session ${e.session}`, e.delivery && ` delivery ${e.delivery}`, e.until && ` until ${instant(e.until)}`, e.expires_at && ` expires ${instant(e.expires_at)}`,
      e.letter && ` letter ${e.letter}`, (e.queues ?? []).length > 0 && ` to ${e.queues.join(', ')}`)))))];
}
