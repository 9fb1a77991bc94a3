// Messages that wait for their time, in a queue or at a delayed exchange: as a timeline, and one by one.

import { bars } from './chart.js';
import { get, patch, post, remove } from './client.js';
import { button, fill, h } from './dom.js';
import { bytes, count, duration, instant, left, now } from './format.js';
import { Table } from './table.js';
import { confirm, dialog, field, input, section } from './view.js';

const most = 1000; // messages that are asked for
const shown = 100; // of these in the table
const slots = 40; // of the timeline

// scheduled is the part of a queue; waiting is the same for any path that lists such messages.
export function scheduled(view, body, at) {
  waiting(view, body, `${at}/scheduled`);
}

export function waiting(view, body, at) {
  const line = h('div'), more = h('p');
  const table = new Table('Scheduled messages', [
    { title: 'Due', show: (m) => left(m.due_at) },
    { title: 'At', minor: true, show: (m) => instant(m.due_at) },
    { title: 'Number', number: true, show: (m) => count(m.id) },
    { title: 'Schedule id', show: (m) => m.schedule_id ?? '–' },
    { title: 'Routing key', minor: true, show: (m) => m.routing_key },
    { title: 'Message id', minor: true, show: (m) => m.message_id ?? '–' },
    { title: 'Size', number: true, minor: true, show: (m) => bytes(m.bytes) },
    { title: 'Actions', show: (m) => h('span', { class: 'buttons', data: { key: `actions ${m.id}` } }, button('Fire', () => fire(m)), button('Move', () => move(m)), button('Cancel', () => cancel(m))) },
  ], (m) => String(m.id), { empty: 'No message waits for its time.' });
  fill(body, section('Timeline', line), section('Messages', table.element, more, h('div', { class: 'buttons' }, button('Cancel all', cancelAll, { class: 'danger' }))));

  const one = (m) => `${at}/${encodeURIComponent(String(m.id))}`;
  const fire = (m) => view.act(() => post(`${one(m)}/fire`, {}), `Message ${m.id} has fired.`);
  const cancel = async (m) => {
    if (await confirm(`Cancel message ${m.id}?`, 'Cancel it', 'The message is deleted.')) await view.act(() => remove(one(m)), `Message ${m.id} is cancelled.`);
  };
  const move = (m) => dialog(`Move message ${m.id}`, field('Delay', input('delay', { required: true, inputmode: 'numeric', pattern: '[0-9]+', autofocus: true }), 'Milliseconds from now'), 'Move', async (f) => {
    await patch(one(m), { delay: Number(f.delay.value) });
    view.refresh();
    return true;
  });
  async function cancelAll() {
    if (await confirm('Cancel all scheduled messages?', 'Cancel all', 'All messages that wait for their time here are deleted.')) await view.act(() => remove(at), (a) => `${count(a.messages)} messages are cancelled.`);
  }
  view.every(async () => {
    const list = await get(at, { limit: most }, { signal: view.signal });
    table.show(list.slice(0, shown));
    fill(line, timeline(list));
    fill(more, list.length > shown && `These are the first ${shown}${list.length === most ? '' : ` of ${count(list.length)}`}.`);
  });
}

// timeline draws how many messages are due when. Messages that are due at once count as due now.
function timeline(list) {
  if (list.length === 0) return h('p', null, 'Nothing is scheduled.');
  const from = now(), to = Math.max(from + 1000, list.at(-1).due_at), width = (to - from) / slots;
  const counts = new Array(slots).fill(0);
  for (const m of list) counts[Math.min(slots - 1, Math.max(0, Math.floor((m.due_at - from) / width)))]++;
  const top = Math.max(...counts);
  const what = `${list.length === most ? `The first ${count(most)}` : count(list.length)} scheduled messages, the next in ${duration(Math.max(0, list[0].due_at - from))}, the last of these in ${duration(to - from)}, at most ${count(top)} in ${duration(width)}`;
  return bars(counts, (i) => [i * width, (i + 1) * width], what, `${list[0].cursor} ${list.at(-1).cursor} ${list.length} ${Math.floor(from / 5000)}`);
}
