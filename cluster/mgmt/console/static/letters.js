// The dead letters in a queue: why they died, and where.

import { get } from './client.js';
import { fill, h, link, place } from './dom.js';
import { count, several } from './format.js';
import { Table } from './table.js';
import { section } from './view.js';

export function letters(view, body, at, { vhost }) {
  const what = h('p'), reasons = h('div'), sources = h('div');
  const kinds = new Table('Kinds of dead letters', [
    { title: 'Reason', show: (k) => k.reason },
    { title: 'Died in', show: (k) => link(place('queue', vhost, k.source), k.source) },
    { title: 'Messages', number: true, show: (k) => count(k.messages) },
  ], (k) => JSON.stringify([k.reason, k.source]), { empty: 'No message here has died in another queue.' });
  fill(body, what, section('By reason', reasons), section('By queue', sources), section('By both', kinds.element));
  view.every(async () => {
    const found = await get(`${at}/letters`, null, { signal: view.signal });
    const rest = [found.no_source && `${several(found.no_source, 'message')} of them did not die in another queue`, found.other && `${several(found.other, 'letter')} of more kinds`].filter(Boolean);
    fill(what, `${found.next ? 'The first ' : ''}${several(found.messages, 'ready message')}${rest.length > 0 ? `: ${rest.join(', ')}` : ''}.`);
    fill(reasons, histogram(found, 'reason'));
    fill(sources, histogram(found, 'source'));
    kinds.show(found.kinds);
  });
}

// histogram draws how many letters there are of each value of a key, most first.
function histogram({ kinds }, key) {
  const sums = new Map();
  for (const k of kinds) sums.set(k[key], (sums.get(k[key]) ?? 0) + k.messages);
  const list = [...sums].sort(([, a], [, b]) => b - a);
  if (list.length === 0) return h('p', null, 'There are none.');
  return h('dl', { class: 'histogram', data: { key: JSON.stringify(list) } }, list.map(([value, n]) => {
    const bar = h('span', { class: 'bar' });
    bar.style.width = `${100 * n / list[0][1]}%`;
    return [h('dt', null, value), h('dd', null, bar, h('span', null, count(n)))];
  }));
}
