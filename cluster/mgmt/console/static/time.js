// What comes next in all queues: what expires, fires, times out, is retried, and dies.

import { get, path } from './client.js';
import { fill, h, link, place } from './dom.js';
import { ago, count, duration, left, several } from './format.js';
import { paged, Table } from './table.js';
import { section } from './view.js';

// kinds are what the API counts: its name, what it is in words, short, and how it is drawn. What is not
// drawn is a part of another kind, or not about messages.
const kinds = [
  ['expire', 'Messages expire', 'Expire', 'kind-1'],
  ['dead_letter', 'of which become dead letters', 'Die'],
  ['fire', 'Scheduled messages fire', 'Fire', 'kind-2'],
  ['time_out', 'Held messages time out, and are taken back from consumers', 'Time out', 'kind-3'],
  ['unlock', 'Locks end, unless they are renewed', 'Locks end', 'kind-4'],
  ['retry', 'Failed messages are retried', 'Retried', 'kind-5'],
  ['return', 'Deferred messages return', 'Return', 'kind-6'],
  ['delete', 'Unused queues are deleted', 'Deleted'],
];
const drawn = kinds.filter(([, , , drawing]) => drawing);
const spans = [['minute', 'Next minute'], ['hour', 'Next hour'], ['day', 'Next day']];

export function time(view) {
  const summary = h('p'), chart = h('div'), missing = h('p');
  let least = '';
  const sums = new Table('What comes next', [
    { title: 'Event', show: ({ kind: [, title, , drawing] }) => (drawing ? [h('span', { class: `dot ${drawing}` }), title] : h('div', { class: 'part' }, title)) },
    ...spans.map(([span, title]) => ({ title, number: true, show: ({ kind: [name], next }) => [least && h('small', null, least), count(next[span][name])] })),
  ], ({ kind: [name] }) => name);
  const rows = [
    { title: 'Queue', sort: 'name', show: (q) => (q.exchange ? [link(place('exchange', q.vhost, q.exchange), q.exchange), h('small', null, ' exchange')] : link(place('queue', q.vhost, q.name), q.name)) },
    { title: 'Virtual host', sort: 'vhost', minor: true, show: (q) => q.vhost },
    { title: 'Next', sort: 'next_at', show: (q) => left(q.next_at) },
    ...kinds.map(([name, , short]) => ({ title: short, sort: `day.${name}`, number: true, minor: true, extra: ['unlock', 'return', 'delete'].includes(name), show: (q) => ofDay(q, name) })),
  ];
  view.show('Time', h('p', { class: 'under' }, 'What is known now to happen in all queues that you may see.'), section('When', chart), section('Next', sums.element, summary, missing),
    section('Queues', h('p', null, h('small', null, 'Those in which something happens within a day. Each number is of the next hour, and of the next day.')),
      paged(view, 'Queues', path('quorate', 'time', 'queues'), rows, { key: (q) => `${q.vhost}\n${q.name}`, by: 'next_at', empty: 'Nothing happens within a day.' })));
  view.every(async () => {
    const t = await get(path('quorate', 'time'), null, { signal: view.signal });
    least = t.at_least ? 'at least ' : '';
    sums.show(kinds.map((kind) => ({ kind, next: t })));
    fill(summary, `${several(t.queues, 'queue')} counted `, ago(t.counted_at), '.');
    fill(missing, t.queues_unknown > 0 && `${several(t.queues_unknown, 'queue')} ${t.queues_unknown === 1 ? 'has' : 'have'} no leader that answers: what comes there is not known, and not in these numbers.`);
    fill(chart, stacks(t.within));
  });
}

// ofDay shows the counts of an hour and of a day of a queue.
const ofDay = (q, name) => (q.day[name] === 0 ? '–' : [q.at_least && h('small', null, 'at least '), count(q.hour[name]), ' / ', count(q.day[name])]);

// stacks draws what comes in each span up to a day, one kind upon the other. The node counts what comes within a
// time, sooner ones included.
function stacks(within) {
  const counts = within.map((w, i) => drawn.map(([name]) => w[name] - (within[i - 1]?.[name] ?? 0)));
  const sums = counts.map((c) => c.reduce((a, b) => a + b, 0)), top = Math.max(...sums), all = sums.reduce((a, b) => a + b, 0);
  if (all === 0) return h('p', null, 'Nothing happens to a message within a day.');
  const spanOf = (i) => `${duration(within[i - 1]?.within_ms ?? 0)} to ${duration(within[i].within_ms)}`;
  const list = counts.map((c, i) => h('div', { class: 'stack', title: `In ${spanOf(i)}: ${words(c)}` }, c.map((n, k) => {
    const part = h('span', { class: drawn[k][3] });
    part.style.height = `${100 * n / top}%`;
    return n > 0 && part;
  })));
  const most = sums.indexOf(top), what = `${several(all, 'message')} within a day, at most ${count(top)} in ${spanOf(most)}: ${words(counts[most])}`;
  return h('figure', { class: 'ahead', data: { key: JSON.stringify(counts) } }, h('div', { class: 'bars', role: 'img', 'aria-label': what }, list),
    h('div', { class: 'ticks', 'aria-hidden': 'true' }, within.map((w) => h('span', null, [60000, 3600000, 86400000].includes(w.within_ms) && duration(w.within_ms)))),
    h('ul', { class: 'legend' }, drawn.map(([, , short, drawing]) => h('li', null, h('span', { class: `dot ${drawing}` }), short))), h('figcaption', null, `${what}. Each bar is a span about twice as long as the one before.`));
}

// words lists the counts of kinds.
const words = (counts) => drawn.map(([, , short], k) => counts[k] > 0 && `${count(counts[k])} ${short.toLowerCase()}`).filter(Boolean).join(', ') || 'nothing';
