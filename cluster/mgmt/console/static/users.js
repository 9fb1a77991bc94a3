// Users, their permissions, virtual hosts, and all definitions as a file.

import { get, path, postText, put, remove } from './client.js';
import { badge, button, fill, h, link, place } from './dom.js';
import { count } from './format.js';
import { paged, Table } from './table.js';
import { confirm, dialog, field, input, section, select } from './view.js';
import { vhostNames } from './queues.js';

export function users(view) {
  const columns = [
    { title: 'Name', sort: 'name', show: (u) => link(place('user', u.name), u.name) },
    { title: 'Tags', show: (u) => u.tags.map((t) => badge(t)) },
    { title: 'Password', minor: true, show: (u) => (u.password_hash ? 'yes' : badge('none: cannot log in', 'warn')) },
    { title: 'Limits', minor: true, show: (u) => Object.entries(u.limits).map(([name, n]) => `${name} ${n}`).join(', ') || '–' },
    { title: 'Actions', show: (u) => u.name !== view.user.name && button('Delete', () => drop(u)) },
  ];
  view.show('Users', paged(view, 'Users', path('users'), columns, { key: (u) => u.name, by: 'name', controls: button('Add a user', () => edit(view), { class: 'primary' }) }));
  async function drop(u) {
    if (await confirm(`Delete the user ${u.name}?`, 'Delete', 'The user’s connections are closed.')) await view.act(async () => remove(path('users', u.name)), 'The user is deleted.');
  }
}

// edit adds a user, or gives one another password and other tags.
async function edit(view, user) {
  await dialog(user ? `Change ${user.name}` : 'Add a user', [
    !user && field('Name', input('name', { required: true })), field('Password', h('input', { name: 'password', type: 'password', autocomplete: 'new-password', required: true })),
    field('Tags', input('tags', { value: user?.tags.join(',') }), 'management, policymaker, monitoring, administrator; separated by commas. Without one of these, AMQP only'),
  ], user ? 'Change' : 'Add', async (f) => {
    await put(path('users', user ? user.name : f.name.value), { password: f.password.value, tags: f.tags.value });
    view.say('The user is set.', 'good');
    view.refresh();
    return true;
  });
}

export function user(view, name) {
  const tags = h('p'), at = path('users', name);
  const table = new Table('Permissions', [
    { title: 'Vhost', show: (p) => p.vhost },
    ...['configure', 'write', 'read'].map((k) => ({ title: k, show: (p) => h('code', null, p[k]) })),
    { title: 'Actions', show: (p) => button('Delete', () => view.act(() => remove(path('permissions', p.vhost, name)), 'The permission is gone.')) },
  ], (p) => p.vhost, { empty: 'The user may open no virtual host.' });
  let found;
  view.show(`User ${name}`, tags, h('div', { class: 'buttons' }, button('Change', () => found && edit(view, found)), button('Set permissions', permit, { class: 'primary' })), section('Permissions', table.element));
  view.every(async () => {
    found = await get(at, null, { signal: view.signal });
    fill(tags, found.tags.length > 0 ? found.tags.map((t) => badge(t)) : 'no tags');
    table.show(await get(`${at}/permissions`, null, { signal: view.signal }));
  });
  async function permit() {
    const vhosts = await vhostNames(view);
    await dialog(`Permissions of ${name}`, [field('Virtual host', select('vhost', vhosts)), ...['configure', 'write', 'read'].map((k) => field(k, input(k, { value: '.*' }), k === 'read' ? 'Regular expressions on the names of queues and exchanges; an empty one permits nothing' : undefined))], 'Set', async (f) => {
      await put(path('permissions', f.vhost.value, name), { configure: f.configure.value, write: f.write.value, read: f.read.value });
      view.refresh();
      return true;
    });
  }
}

export function vhosts(view) {
  const may = view.may('administrator');
  const columns = [
    { title: 'Name', sort: 'name', show: (v) => link(place('queues', v.name), v.name) },
    { title: 'Description', sort: 'description', minor: true, show: (v) => v.description || '–' },
    { title: 'Tags', minor: true, show: (v) => v.tags.map((t) => badge(t)) },
    { title: 'Ready', sort: 'messages_ready', number: true, show: (v) => count(v.messages_ready) },
    { title: 'Unacked', sort: 'messages_unacknowledged', number: true, show: (v) => count(v.messages_unacknowledged) },
    { title: 'Actions', show: (v) => may && button('Delete', () => drop(v)) },
  ];
  view.show('Virtual hosts', paged(view, 'Virtual hosts', path('vhosts'), columns, { key: (v) => v.name, by: 'name', controls: may && button('Add a virtual host', add, { class: 'primary' }) }));
  function add() {
    dialog('Add a virtual host', [field('Name', input('name', { required: true })), field('Description', input('description'))], 'Add', async (f) => {
      await put(path('vhosts', f.name.value), { description: f.description.value });
      view.refresh();
      return true;
    });
  }
  async function drop(v) {
    const done = await dialog(`Delete the virtual host ${v.name}?`, [h('p', null, 'All its queues, messages, exchanges and permissions are deleted, and its connections closed.'), field('Its name, to be sure', input('sure', { required: true }))], 'Delete', (f) => {
      if (f.sure.value !== v.name) throw new Error('That is not its name.');
      return true;
    }, { danger: true });
    if (done) await view.act(async () => remove(path('vhosts', v.name)), 'The virtual host is deleted.');
  }
}

export function definitions(view) {
  const result = h('div', { 'aria-live': 'polite' });
  const file = h('input', { type: 'file', name: 'file', accept: '.json,application/json' });
  view.show('Definitions', section('Export', h('p', null, 'All users, virtual hosts, permissions, policies, queues, exchanges and bindings as one file. It has the hashes of passwords: keep it secret.'), button('Save the definitions', save, { class: 'primary' })),
    section('Import', h('p', null, 'What exists and is equal stays; users, permissions, limits and policies are replaced; nothing is deleted. Exports of RabbitMQ 3.8 and later are taken, too.'),
      h('div', { class: 'controls' }, field('File', file), button('Import', load)), result));

  async function save() {
    try {
      const text = JSON.stringify(await get(path('definitions')), null, 2);
      const url = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
      h('a', { href: url, download: 'definitions.json' }).click();
      setTimeout(() => URL.revokeObjectURL(url), 60000);
      view.say('The definitions are saved.', 'good');
    } catch (failure) {
      view.say(failure.message, 'bad');
    }
  }
  async function load() {
    const chosen = file.files[0];
    if (!chosen) return view.say('Choose a file first.', 'bad');
    if (!await confirm(`Import ${chosen.name}?`, 'Import it', 'Users, permissions, limits and policies in it replace those of the same names.')) return;
    await view.act(async () => {
      const answer = await postText(path('definitions'), await chosen.text());
      fill(result, answer && [h('p', null, `${count(Object.values(answer.taken).reduce((a, b) => a + b, 0))} definitions were taken, ${count(answer.skipped_total)} were not:`),
        h('ul', null, answer.skipped.map((s) => h('li', null, `${s.section} ${s.vhost ? `${s.vhost} ` : ''}`, h('code', null, s.name), `: ${s.reason}`)))]);
      return answer;
    }, (answer) => (answer ? 'A part of the definitions is imported.' : 'All definitions are imported.'));
  }
}
