// Users, and definitions as a file.

import { get, path, postText, put, remove } from './client.js';
import { badge, button, fill, h, link, place } from './dom.js';
import { count, several } from './format.js';
import { limits, permissions } from './limits.js';
import { paged } from './table.js';
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
  view.show('Users', paged(view, 'Users', path('users'), columns, { key: (u) => u.name, by: 'name', controls: button('Add a user', () => add(view), { class: 'primary' }) }));
  async function drop(u) {
    if (await confirm(`Delete the user ${u.name}?`, 'Delete', 'The user’s connections are closed.')) await view.act(async () => remove(path('users', u.name)), 'The user is deleted.');
  }
}

const tagsField = (tags) => field('Tags', input('tags', { value: tags?.join(',') }), 'management, policymaker, monitoring, administrator; separated by commas. Without one of these, AMQP only');
const passwordField = (required) => field('Password', h('input', { name: 'password', type: 'password', autocomplete: 'new-password', required }), required ? undefined : 'Nothing: the user cannot log in with a password');

function add(view) {
  return dialog('Add a user', [field('Name', input('name', { required: true })), passwordField(true), tagsField()], 'Add', async (f) => {
    await put(path('users', f.name.value), { password: f.password.value, tags: f.tags.value });
    view.say('The user is set.', 'good');
    view.refresh();
    return true;
  });
}

export function user(view, name) {
  const facts = h('div'), at = path('users', name);
  let found;
  const known = (change) => () => found && change();
  view.absent = `There is no user ${name}.`;
  view.show(`User ${name}`, facts, h('div', { class: 'buttons' }, button('Change tags', known(retag)), button('Change password', known(rekey)), button('Close its connections', disconnect, { class: 'danger' })),
    ...permissions(view, { user: name }), limits(view, 'user-limits', name));
  view.every(async () => {
    found = await get(at, null, { signal: view.signal });
    fill(facts, h('p', null, found.tags.length > 0 ? found.tags.map((t) => badge(t)) : 'no tags', found.password_hash === '' && badge('no password: cannot log in with one', 'warn')));
  });
  // A request replaces the whole user: what is not changed goes back as it was read.
  function retag() {
    return dialog(`Tags of ${name}`, tagsField(found.tags), 'Change', async (f) => {
      const now = await get(at);
      await put(at, { tags: f.tags.value, ...(now.password_hash === '' ? {} : { password_hash: now.password_hash, hashing_algorithm: now.hashing_algorithm }) });
      return said('The tags are set.');
    });
  }
  function rekey() {
    return dialog(`Password of ${name}`, [field('Name', input('name', { value: name, readonly: true, autocomplete: 'username' })), passwordField(false)], 'Change', async (f) => {
      const now = await get(at);
      await put(at, { tags: now.tags.join(','), ...(f.password.value === '' ? {} : { password: f.password.value }) });
      return said('The password is set.');
    });
  }
  function said(what) {
    view.say(what, 'good');
    view.refresh();
    return true;
  }
  async function disconnect() {
    if (await confirm(`Close all connections of ${name}?`, 'Close them')) await view.act(() => remove(path('connections', 'username', name)), 'The connections are closed.');
  }
}

export function definitions(view) {
  const result = h('div', { 'aria-live': 'polite' });
  const of = select('of', [['', 'Everything']]);
  vhostNames(view).then((names) => of.append(...names.map((v) => h('option', { value: v }, `The virtual host ${v}`))), (failure) => view.signal.aborted || view.say(failure.message, 'bad'));
  const at = () => (of.value === '' ? path('definitions') : path('definitions', of.value));
  const file = h('input', { type: 'file', name: 'file', accept: '.json,application/json' });
  view.show('Definitions', h('div', { class: 'controls' }, field('Of', of)), section('Export', h('p', null, 'All users, virtual hosts, permissions, policies, queues, exchanges and bindings as one file, or the policies, queues, exchanges and bindings of one virtual host. The file of everything has the hashes of passwords: keep it secret.'), button('Save the definitions', save, { class: 'primary' })),
    section('Import', h('p', null, 'What exists and is equal stays; users, permissions, limits and policies are replaced; nothing is deleted. Exports of RabbitMQ 3.8 and later are taken, too.'),
      h('div', { class: 'controls' }, field('File', file), button('Import', load)), result));

  async function save() {
    try {
      const text = JSON.stringify(await get(at()), null, 2);
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
      const answer = await postText(`${at()}?partial=true`, await chosen.text());
      fill(result, answer && [h('p', null, `Imported: ${several(Object.values(answer.taken).reduce((a, b) => a + b, 0), 'definition')}. Not imported: ${count(answer.skipped_total)}.`),
        h('ul', null, answer.skipped.map((s) => h('li', null, `${s.section} ${s.vhost ? `${s.vhost} ` : ''}`, h('code', null, s.name), `: ${s.reason}`)))]);
      return answer;
    }, (answer) => (answer ? 'Only a part of the definitions is imported.' : 'All definitions are imported.'));
  }
}
