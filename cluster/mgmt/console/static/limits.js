// Limits of a user or a virtual host, and the permissions of users.

import { get, path, put, remove } from './client.js';
import { button, h } from './dom.js';
import { count } from './format.js';
import { paged, Table } from './table.js';
import { confirm, dialog, field, input, section, select } from './view.js';
import { vhostNames } from './queues.js';

// kinds are the limits that users and virtual hosts have, by the path.
const kinds = {
  'user-limits': [['max-connections', 'Connections, at all nodes'], ['max-channels', 'Channels, at all nodes']],
  'vhost-limits': [['max-connections', 'Connections, at all nodes'], ['max-queues', 'Queues']],
};

export function limits(view, kind, of) {
  const may = view.may('administrator');
  const table = new Table('Limits', [
    { title: 'Limit', show: (l) => [l.title, ' ', h('small', null, l.name)] },
    { title: 'Value', number: true, show: (l) => (l.value === undefined ? 'as the cluster’s settings say' : l.value < 0 ? 'none' : count(l.value)) },
    may && { title: 'Actions', show: (l) => h('span', { class: 'buttons', data: { key: `${l.name} ${l.value}` } }, button('Set', () => set(l), { 'aria-label': `Set ${l.name}` }), l.value !== undefined && button('Clear', () => clear(l), { 'aria-label': `Clear ${l.name}` })) },
  ].filter(Boolean), (l) => l.name);
  view.every(async () => {
    const [given] = await get(path(kind, of), null, { signal: view.signal });
    table.show(kinds[kind].map(([name, title]) => ({ name, title, value: given?.value[name] })));
  });
  const set = (l) => dialog(`Set ${l.name} of ${of}`, field('Value', input('value', { required: true, inputmode: 'numeric', pattern: '-?[0-9]+', value: l.value ?? '', autofocus: true }), 'A whole number; negative: no limit'), 'Set', async (f) => {
    await put(path(kind, of, l.name), { value: Number(f.value.value) });
    view.refresh();
    return true;
  });
  const clear = (l) => view.act(() => remove(path(kind, of, l.name)), `${l.name} is as the cluster’s settings say.`);
  return section('Limits', table.element);
}

const patternHint = 'A regular expression; an empty one permits nothing';

// permissions are those of a user, or in a virtual host; of is { user } or { vhost }. The other one of
// both is a column.
export function permissions(view, of) {
  const [base, other, title] = of.user === undefined ? [path('vhosts', of.vhost), 'user', 'User'] : [path('users', of.user), 'vhost', 'Virtual host'];
  const whole = (p) => ({ ...p, ...of });
  const columns = (kinds, edit, drop) => [
    { title, sort: other, show: (p) => p[other] }, ...kinds.map((k) => ({ title: k, show: (p) => h('code', null, p[k]) })),
    { title: 'Actions', show: (p) => h('span', { class: 'buttons', data: { key: JSON.stringify(p) } }, button('Edit', () => edit(whole(p))), button('Delete', () => drop(whole(p)))) },
  ];
  const ask = async (title, p, fields, send) => {
    const names = p[other] !== undefined ? [p[other]] : other === 'vhost' ? await vhostNames(view) : undefined;
    await dialog(title, [names ? field(other === 'vhost' ? 'Virtual host' : 'User', select(other, names)) : field('User', input('user', { required: true })), ...fields], 'Set', async (f) => {
      await send({ ...of, [other]: f[other].value }, f);
      view.refresh();
      return true;
    });
  };
  const whose = of.user === undefined ? `in ${of.vhost}` : `of ${of.user}`;
  const permit = (p = {}) => ask(`Permissions ${whose}`, p, ['configure', 'write', 'read'].map((k) => field(k, input(k, { value: p[k] ?? '.*' }), k === 'read' && `On the names of queues and exchanges. ${patternHint}`)),
    (at, f) => put(path('permissions', at.vhost, at.user), { configure: f.configure.value, write: f.write.value, read: f.read.value }));
  const permitTopic = (p = {}) => ask(`Topic permissions ${whose}`, p, [
    field('Exchange', input('exchange', { required: true, value: p.exchange ?? 'amq.topic', readonly: p.exchange !== undefined })),
    ...['write', 'read'].map((k) => field(k, input(k, { value: p[k] ?? '.*' }), k === 'read' && `On routing keys: of publishes, and of bindings. ${patternHint}`)),
  ], (at, f) => put(path('topic-permissions', at.vhost, at.user), { exchange: f.exchange.value, write: f.write.value, read: f.read.value }));
  const forbid = async (p) => {
    if (await confirm(`Delete the permissions of ${p.user} in ${p.vhost}?`, 'Delete it')) await view.act(() => remove(path('permissions', p.vhost, p.user)), 'The permission is gone.');
  };
  const forbidTopic = async (p) => {
    if (await confirm(`Delete the permissions of ${p.user} at ${p.exchange} in ${p.vhost}?`, 'Delete it', 'The user may then use every routing key there.')) {
      await view.act(async () => remove(path('topic-permissions', p.vhost, p.user, p.exchange)), 'The topic permission is gone.');
    }
  };
  const topic = columns(['write', 'read'], permitTopic, forbidTopic);
  topic.splice(1, 0, { title: 'Exchange', sort: 'exchange', show: (p) => p.exchange });
  return [
    section('Permissions', h('div', { class: 'buttons' }, button('Set permissions', () => permit(), { class: 'primary' })),
      paged(view, 'Permissions', `${base}/permissions`, columns(['configure', 'write', 'read'], permit, forbid), { key: (p) => p[other], by: other, named: false, empty: of.user === undefined ? 'No user may open it.' : 'The user may open no virtual host.' })),
    section('Topic permissions', h('div', { class: 'buttons' }, button('Set topic permissions', () => permitTopic())),
      paged(view, 'Topic permissions', `${base}/topic-permissions`, topic, { key: (p) => JSON.stringify([p[other], p.exchange]), by: other, named: false, empty: 'There are none: every routing key is permitted.' })),
  ];
}
