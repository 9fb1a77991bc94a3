// The dead letters in a queue: why they died, and where, and how they go back.

import { get, post, remove } from './client.js';
import { badge, button, fill, h, link, pairs, place } from './dom.js';
import { ago, count, rate, several } from './format.js';
import { Table } from './table.js';
import { dialog, field, input, section } from './view.js';

export function letters(view, body, at, { vhost, name }) {
  const what = h('p'), last = h('div'), reasons = h('div'), sources = h('div');
  const cancel = button('Cancel the redrive', () => view.act(() => remove(`${at}/redrive`), (a) => (a.changed ? 'The redrive is cancelled.' : 'It has ended.')), { class: 'danger' });
  cancel.hidden = true;
  const kinds = new Table('Kinds of dead letters', [
    { title: 'Reason', show: (k) => k.reason },
    { title: 'Died in', show: (k) => link(place('queue', vhost, k.source), k.source) },
    { title: 'Messages', number: true, show: (k) => count(k.messages) },
    { title: 'Actions', show: (k) => h('span', { class: 'buttons', data: { key: `redrive ${k.reason} ${k.source}` } }, button('Redrive', () => redrive(view, at, name, k))) },
  ], (k) => JSON.stringify([k.reason, k.source]), { empty: 'No message here has died in another queue.' });
  fill(body, h('div', { class: 'buttons' }, button('Redrive', () => redrive(view, at, name, {}), { class: 'primary' }), cancel), last, what, section('By reason', reasons), section('By queue', sources), section('By both', kinds.element));
  view.every(async () => {
    const found = await get(`${at}/letters`, null, { signal: view.signal });
    const rest = [found.no_source && `${several(found.no_source, 'message')} of them did not die in another queue`, found.other && `${several(found.other, 'letter')} of more kinds`].filter(Boolean);
    fill(what, `${found.next ? 'The first ' : ''}${several(found.messages, 'ready message')}${rest.length > 0 ? `: ${rest.join(', ')}` : ''}.`);
    fill(reasons, histogram(found, 'reason'));
    fill(sources, histogram(found, 'source'));
    kinds.show(found.kinds);
  });
  view.every(async () => {
    const { redrive: r } = await get(at, { columns: 'redrive' }, { signal: view.signal });
    cancel.hidden = !r || r.ended !== null;
    fill(last, r && section('Last redrive', pairs(progressOf(r, vhost))));
  }, 1000);
}

// progressOf says how far a redrive is.
function progressOf(r, vhost) {
  return [
    ['State', r.ended === null ? badge('goes on', 'good') : [badge(r.why === '' ? 'done' : 'ended before', r.why === '' ? '' : 'warn'), ' ', ago(r.ended)]],
    ['Why', r.why], ['Begun', [ago(r.since), ` by ${r.by}`]], ['Rate', r.rate > 0 ? `at most ${rate(r.rate)}` : 'as it comes'], ['Limit', r.limit > 0 ? count(r.limit) : ''],
    ['To', r.to === '' ? 'where each died' : link(place('queue', vhost, r.to), r.to)], ['Sent', count(r.taken)], ['Left, at most', r.ended === null ? count(r.remaining) : ''],
    ['Stay, their queue is gone', r.source_gone > 0 ? count(r.source_gone) : ''], ['Stay, no letters', r.no_source > 0 ? count(r.no_source) : ''],
    [`Stay, ${r.by} may not write there`, r.refused > 0 ? count(r.refused) : ''],
  ];
}

// redrive has the queue begin one, with what a kind of letters has filled in.
async function redrive(view, at, name, kind) {
  const number = (n, hint) => input(n, { inputmode: 'numeric', pattern: '[0-9]*', placeholder: hint });
  await dialog(`Redrive the letters in ${name}`, [
    field('Reason', input('reason', { value: kind.reason, placeholder: 'any' })), field('Died in', input('source', { value: kind.source, placeholder: 'any queue' })),
    field('At most', number('limit', 'all')), field('Rate', number('rate', 'as it comes'), 'Messages a second'),
    field('To', input('to', { placeholder: 'where each died' }), 'A queue of this virtual host'),
  ], 'Begin', async (f) => {
    const asked = { all: true };
    for (const key of ['reason', 'source', 'to']) if (f[key].value !== '') asked[key] = f[key].value;
    for (const key of ['limit', 'rate']) if (f[key].value !== '') asked[key] = Number(f[key].value);
    await post(`${at}/redrive`, asked);
    view.say('The redrive has begun.', 'good');
    view.refresh();
    return true;
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
