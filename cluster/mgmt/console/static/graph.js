// The bindings of an exchange as a drawing: what is bound to it on the left, what it is bound to on
// the right.

import { exchangePath, get } from './client.js';
import { draw, fill, h, place } from './dom.js';
import { count } from './format.js';
import { scrolled } from './table.js';

// most is how many bindings are drawn on each side: as many as can be told apart.
const most = 30;
const letters = { end: 24, key: 26 }; // of a text, at most
const end = { width: 190, height: 26 }, gap = 200, step = 42, margin = 4;

const shown = (name) => (name === '' ? '(default)' : name);
const short = (text, length) => (Array.from(text).length > length ? `${Array.from(text).slice(0, length - 1).join('')}…` : text);

// graph shows the bindings of an exchange, and draws them again when they change.
export function graph(view, vhost, name) {
  const element = h('div');
  view.every(async () => {
    const side = (kind, sort) => get(exchangePath(vhost, name, 'bindings', kind), { page: 1, page_size: most, sort }, { signal: view.signal });
    const [from, to] = await Promise.all([side('source', 'destination'), name === '' ? { items: [], total_count: 0 } : side('destination', 'source')]);
    fill(element, picture(vhost, name, from, to));
  });
  return element;
}

function picture(vhost, name, from, to) {
  if (from.total_count + to.total_count === 0) return h('p', null, 'Nothing is bound to it, and it is bound to nothing.');
  const sources = endsOf(to.items, (b) => ['exchange', b.source]), destinations = endsOf(from.items, (b) => [b.destination_type, b.destination]);
  const column = end.width + gap, columns = 1 + (sources.length > 0 ? 1 : 0) + (destinations.length > 0 ? 1 : 0), middle = sources.length > 0 ? column : 0;
  const rows = Math.max(1, sources.length, destinations.length), width = columns * end.width + (columns - 1) * gap + 2 * margin, height = rows * step + 2 * margin;
  const yOf = (i, n) => margin + (i + 0.5) * step + (rows - n) * step / 2;
  const left = margin + middle, own = yOf(0, 1);
  const parts = [
    ...sources.flatMap((s, i) => edge(margin + end.width, yOf(i, sources.length), left, own, s.keys, false)),
    ...destinations.flatMap((d, i) => edge(left + end.width, own, left + column, yOf(i, destinations.length), d.keys, true)),
    ...sources.map((s, i) => box(vhost, s, margin, yOf(i, sources.length))), box(null, { kind: 'exchange', name }, left, own),
    ...destinations.map((d, i) => box(vhost, d, left + column, yOf(i, destinations.length))),
  ];
  const of = (side, what) => side.total_count > side.items.length && `Of ${count(side.total_count)} bindings ${what} it, the first ${count(side.items.length)} are drawn.`;
  const missing = [of(from, 'from'), of(to, 'to')].filter(Boolean).join(' ');
  const what = `${count(from.total_count)} bindings from the exchange ${shown(name)}, ${count(to.total_count)} to it`;
  return h('figure', { class: 'graph' }, scrolled('Graph of bindings', JSON.stringify([from, to]),
    draw('svg', { class: 'graph', role: 'group', 'aria-label': what, width, height, viewBox: `0 0 ${width} ${height}` }, parts)), missing && h('figcaption', null, missing));
}

// endsOf collects the bindings that have the same other end.
function endsOf(bindings, endOf) {
  const all = new Map();
  for (const b of bindings) {
    const [kind, name] = endOf(b), key = `${kind} ${name}`;
    if (!all.has(key)) all.set(key, { kind, name, keys: [] });
    all.get(key).keys.push(Object.keys(b.arguments).length > 0 ? `${b.routing_key} ${JSON.stringify(b.arguments)}`.trim() : b.routing_key);
  }
  return [...all.values()];
}

// edge is the line of one or more bindings, with their routing keys near the other end.
function edge(x, y, toX, toY, keys, ahead) {
  const half = (x + toX) / 2, text = keys.length > 1 ? `${short(keys[0], letters.key - 5)} +${keys.length - 1}` : short(keys[0], letters.key);
  return [
    draw('path', { class: 'edge', d: `M ${x} ${y} C ${half} ${y}, ${half} ${toY}, ${toX - 7} ${toY} m -4 -4 l 6 4 l -6 4` }),
    draw('text', { class: 'key', x: ahead ? toX - 12 : x + 6, y: (ahead ? toY : y) - 5, 'text-anchor': ahead ? 'end' : 'start' }, draw('title', null, keys.join('\n')), text),
  ];
}

// box is an end of bindings, which leads to its page; vhost null: it is the exchange of this page.
function box(vhost, { kind, name }, x, y) {
  const content = [
    draw('title', null, `${kind} ${shown(name)}`), draw('rect', { class: kind, x, y: y - end.height / 2, width: end.width, height: end.height, rx: kind === 'queue' ? 2 : 12 }),
    draw('text', { x: x + end.width / 2, y: y + 5, 'text-anchor': 'middle' }, short(shown(name), letters.end)),
  ];
  if (vhost === null) return draw('g', { class: 'own' }, content);
  return draw('a', { href: place(kind, vhost, name), 'aria-label': `${kind} ${shown(name)}` }, content);
}
