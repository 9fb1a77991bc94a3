// Virtual hosts: what they hold, who may use them, and their limits.

import { get, path, post, put, remove } from './client.js';
import { badge, button, fill, h, link, pairs, place } from './dom.js';
import { ago, count } from './format.js';
import { limits, permissions } from './limits.js';
import { paged } from './table.js';
import { dialog, field, input, section, select } from './view.js';

// sum is what the queues hold whose leaders answer: there may be more.
const sum = (v, n) => (v.queues_unknown > 0 ? h('span', { title: `${count(v.queues_unknown)} of its queues have no leader that answers` }, n > 0 ? `at least ${count(n)}` : '–') : count(n));

export function vhosts(view) {
  const may = view.may('administrator');
  const columns = [
    { title: 'Name', sort: 'name', show: (v) => link(place('vhost', v.name), v.name) },
    { title: 'Description', sort: 'description', minor: true, show: (v) => v.description || '–' },
    { title: 'Tags', minor: true, show: (v) => [v.tags.map((t) => badge(t)), v.protected_from_deletion && badge('protected', 'good')] },
    { title: 'Ready', sort: 'messages_ready', number: true, show: (v) => sum(v, v.messages_ready) },
    { title: 'Unacked', sort: 'messages_unacknowledged', number: true, show: (v) => sum(v, v.messages_unacknowledged) },
    { title: 'Objects', minor: true, show: (v) => [link(place('queues', v.name), 'queues'), ' ', link(place('exchanges', v.name), 'exchanges')] },
    { title: 'Actions', show: (v) => may && button('Delete', () => drop(view, v)) },
  ];
  view.show('Virtual hosts', paged(view, 'Virtual hosts', path('vhosts'), columns, { key: (v) => v.name, by: 'name', controls: may && button('Add a virtual host', () => edit(view), { class: 'primary' }) }));
}

// What a virtual host does with declares of what exists.
const modes = [['strict', 'refused'], ['relaxed', 'answered as if they were the same'], ['adopt', 'the queue has them from then on']];

// edit adds a virtual host, or changes what is said of one.
function edit(view, v) {
  return dialog(v ? `Change ${v.name}` : 'Add a virtual host', [
    !v && field('Name', input('name', { required: true })), field('Description', input('description', { value: v?.description })), field('Tags', input('tags', { value: v?.tags.join(',') }), 'Separated by commas'),
    field('Declares with other arguments', select('redeclare', modes, v?.redeclare)),
  ], v ? 'Change' : 'Add', async (f) => {
    await put(path('vhosts', v ? v.name : f.name.value), { description: f.description.value, tags: f.tags.value, redeclare: f.redeclare.value });
    view.refresh();
    return true;
  });
}

async function drop(view, v) {
  const done = await dialog(`Delete the virtual host ${v.name}?`, [h('p', null, 'All its queues, messages, exchanges and permissions are deleted, and its connections closed.'), field('Its name, to be sure', input('sure', { required: true }))], 'Delete', (f) => {
    if (f.sure.value !== v.name) throw new Error('That is not its name.');
    return true;
  }, { danger: true });
  return done && view.act(async () => remove(path('vhosts', v.name)), 'The virtual host is deleted.');
}

// valueOf shows the value of an argument.
const valueOf = (v) => (v === null ? '–' : JSON.stringify(v));

const driftColumns = [
  { title: 'Name', sort: 'name', show: (d) => link(place(d.kind, d.vhost, d.name), d.name) },
  { title: 'Argument', sort: 'argument', show: (d) => d.argument },
  { title: 'Has', show: (d) => valueOf(d.declared) },
  { title: 'Received', show: (d) => [valueOf(d.received), ' ', d.adopted && badge('adopted', 'good')] },
  { title: 'User', sort: 'user', minor: true, show: (d) => d.user },
  { title: 'Client', sort: 'client', show: (d) => d.client || d.connection || 'HTTP' },
  { title: 'Times', sort: 'times', number: true, show: (d) => count(d.times) },
  { title: 'Last', sort: 'last_at', minor: true, show: (d) => ago(d.last_at) },
];

// drift lists who declares otherwise what exists.
function drift(view, name) {
  return section('Drift', paged(view, 'Drift', path('drift', name), driftColumns, {
    key: (d) => JSON.stringify([d.kind, d.name, d.argument, d.received, d.user]), by: 'last_at', down: true, named: false,
    empty: 'Nobody has declared otherwise what exists, as far as the nodes remember.',
  }));
}

export function vhost(view, name) {
  const at = path('vhosts', name), facts = h('div'), buttons = h('div', { class: 'buttons' }), may = view.may('administrator');
  const protect = `${at}/deletion/protection`;
  view.absent = `There is no virtual host ${name}, or you may not see it.`;
  view.show(`Virtual host ${name}`, buttons, section('State', facts), drift(view, name), limits(view, 'vhost-limits', name), ...(may ? permissions(view, { vhost: name }) : []));
  view.every(async () => {
    const v = await get(at, null, { signal: view.signal });
    fill(facts, pairs([
      ['Description', v.description], ['Tags', v.tags.length > 0 ? v.tags.map((t) => badge(t)) : ''], ['Ready', sum(v, v.messages_ready)], ['Unacknowledged', sum(v, v.messages_unacknowledged)],
      ['Deletion', v.protected_from_deletion ? badge('protected', 'good') : 'possible'], ['Objects', [link(place('queues', name), 'queues'), ' ', link(place('exchanges', name), 'exchanges')]],
      ['Declares with other arguments', new Map(modes).get(v.redeclare)],
      ['Nodes', Object.entries(v.cluster_state).sort().map(([node, state]) => [' ', node, ' ', badge(state, state === 'running' ? 'good' : 'bad')])],
    ]));
    fill(buttons, may && [
      h('button', { type: 'button', data: { key: `${v.description} ${v.tags} ${v.redeclare}` }, on: { click: () => edit(view, v) } }, 'Change'),
      v.protected_from_deletion ? button('Allow deletion', () => view.act(() => remove(protect), 'It can be deleted.')) : button('Protect from deletion', () => view.act(() => post(protect, {}), 'It is protected from deletion.')),
      !v.protected_from_deletion && button('Delete', async () => { if (await drop(view, v)) location.hash = '#/vhosts'; }, { class: 'danger' }),
    ]);
  });
}
