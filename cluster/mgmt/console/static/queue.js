// One queue: its state, and the parts that are in files of their own.

import { bars, Chart, lengthsOf, ratesOf, samples } from './chart.js';
import { exchangePath, get, path, post, remove } from './client.js';
import { badge, button, fill, h, link, pairs, place } from './dom.js';
import { ago, bytes, count, duration, left, rate } from './format.js';
import { queueConsumers } from './consumers.js';
import { ended } from './ended.js';
import { queueBindings } from './exchanges.js';
import { letters } from './letters.js';
import { messages } from './messages.js';
import { scheduled } from './scheduled.js';
import { effective, settingsOf } from './settings.js';
import { stateOf } from './queues.js';
import { Table } from './table.js';
import { area, confirm, dialog, field, input, object, section } from './view.js';

const parts = { state: ['State', state], messages: ['Messages', messages], scheduled: ['Scheduled', scheduled], letters: ['Dead letters', letters], consumers: ['Consumers', queueConsumers], bindings: ['Bindings', queueBindings], ended: ['Ended', ended] };

export function queue(view, vhost, name, part) {
  part = Object.hasOwn(parts, part) ? part : 'state';
  const tabs = h('nav', { class: 'tabs', 'aria-label': 'Parts of the queue' }, Object.entries(parts).map(([key, [title]]) => {
    const tab = link(place('queue', vhost, name, key), title);
    if (key === part) tab.setAttribute('aria-current', 'page');
    return tab;
  }));
  const body = h('div');
  view.absent = `There is no queue ${name} in the virtual host ${vhost}, or you may not see it.`;
  view.show(`Queue ${name}`, h('p', { class: 'under' }, 'in the virtual host ', h('code', null, vhost)), tabs, body);
  parts[part][1](view, body, path('queues', vhost, name), { vhost, name });
}

function state(view, body, at, { vhost, name }) {
  const facts = h('div'), times = h('div'), expiry = h('div'), settings = h('div'), priorities = h('div'), leaders = h('div', { class: 'buttons' });
  const lengths = new Chart(view, 'Messages', [['messages_ready', '--line-1'], ['messages_unacknowledged', '--line-3']], count);
  const rates = new Chart(view, 'Messages per second', [['publish', '--line-1'], ['deliver_get', '--line-3'], ['ack', '--line-4'], ['redeliver', '--line-5']], rate);
  const members = new Table('Replicas', memberColumns, (m) => m['Node Name']);
  const values = new Table('Messages by header', valueColumns, (v) => (v.other ? '' : v.value));
  const byHeader = section('By header', values.element);
  byHeader.hidden = true;
  const unpark = button('Unpark', () => view.act(() => post(`${at}/unpark`, {}), 'What was parked is ready.'));
  const resume = button('Resume', () => view.act(() => post(`${at}/resume`, {}), 'Its consumers are served.'));
  unpark.hidden = resume.hidden = true;
  fill(body, h('div', { class: 'buttons' },
    button('Publish', () => publish(view, vhost, name), { class: 'primary' }),
    button('Purge', () => purge(view, at, name)),
    button('Pause', () => pause(view, at, name)), resume, unpark,
    view.may('administrator') && [
      button('Expire now', () => view.act(() => post(`${at}/actions`, { action: 'expire_now' }), 'Nothing in the queue is due any more.')),
      button('Snapshot', () => view.act(() => post(`${at}/actions`, { action: 'snapshot' }), 'Every replica has written a snapshot.')),
    ],
    button('Delete', () => drop(view, at, name), { class: 'danger' })),
  section('State', facts), section('Time', times), section('Expiry', expiry), byHeader, priorities, section('Length', lengths.element), section('Rates', rates.element),
  section('Replicas', members.element, leaders), section('Settings', settings));

  let replicated = false;
  view.every(async () => {
    const q = await get(at, samples, { signal: view.signal });
    replicated = q.durable && !q.exclusive;
    unpark.hidden = !q.messages_parked;
    resume.hidden = !q.pause;
    fill(facts, pairs([
      ['State', stateOf(q)], ['Leader', q.leader ?? '–'], ['Type', `${q.type}${q.durable ? '' : ', not durable'}${q.exclusive ? ', exclusive' : ''}${q.auto_delete ? ', deleted with the last consumer' : ''}`],
      ['Ready', held(q, 'messages_ready', 'message_bytes_ready')], ['Unacknowledged', held(q, 'messages_unacknowledged', 'message_bytes_unacknowledged')],
      ['Scheduled', q.messages_scheduled ? `${count(q.messages_scheduled)} (${bytes(q.message_bytes_scheduled)})` : ''],
      ['Waiting for a retry', q.messages_delayed_retry ? count(q.messages_delayed_retry) : ''], ['Deferred', q.messages_deferred ? count(q.messages_deferred) : ''],
      ['Parked', q.messages_parked ? badge(count(q.messages_parked), 'warn') : ''],
      ...deadLetters(q),
      ['Groups', q.groups ? `${count(q.groups)}, ${count(q.groups_held)} of them held` : ''], ['Consumers', count(q.consumers)], ['Paused', pausedBy(q)],
      ['Log', q.raft ? `term ${count(q.raft.term)}, ${count(q.raft.last_index)} entries written, ${count(q.raft.commit_index)} committed, ${count(q.raft.applied_index)} applied, ${bytes(q.raft.log_bytes)} of messages` : ''],
    ]));
    fill(times, pairs([
      ['Oldest ready message', age(q.oldest_ready_age_ms)], ['Oldest unacknowledged delivery', age(q.oldest_unacknowledged_age_ms)],
      ['Oldest scheduled message', age(q.oldest_scheduled_age_ms)],
      ['Next message expires', q.next_expiry_at ? left(q.next_expiry_at) : ''], ['Unused, the queue is deleted', q.lease_expires_at ? left(q.lease_expires_at) : ''],
      ['Idle since', q.idle_since ? ago(Date.parse(q.idle_since)) : ''],
      ['First scheduled message', q.next_delayed_at ? left(q.next_delayed_at) : ''], ['Last scheduled message', q.last_delayed_at ? left(q.last_delayed_at) : ''],
      ['Expired', count(q.messages_expired_total)], ['Timed out at consumers', count(q.messages_timed_out_total)],
      ['Late consumers', q.consumers_timed_out > 0 ? badge(count(q.consumers_timed_out), 'warn') : count(q.consumers_timed_out)],
      ['Locked deliveries', count(q.messages_locked)], ['Locks lost', count(q.locks_lost_total)], ['Locks renewed', count(q.locks_renewed_total)],
      ['Dead-lettered', count(q.messages_dead_lettered_total)],
    ]));
    fill(expiry, expiryOf(q));
    byHeader.hidden = !q.by_header;
    values.show(q.by_header ?? []);
    fill(priorities, prioritiesOf(q.messages_by_priority));
    lengths.show(lengthsOf(q, ['messages_ready', 'messages_unacknowledged']));
    rates.show(ratesOf(q.message_stats, ['publish', 'deliver_get', 'ack', 'redeliver']));
    await settingsOf(view, q, settings);
  });
  view.every(async () => {
    const list = await get(path('queues', 'quorum', vhost, name, 'status'), null, { signal: view.signal });
    const top = Math.max(0, ...list.map((m) => m['Commit Index']));
    members.show(list.map((m) => ({ ...m, lag: Math.max(0, top - m['Last Applied']) })));
    fill(leaders, await replicaButtons(view, list, { vhost, name, replicated }));
  });
}

// age says how old the oldest of some messages is.
const age = (ms) => (ms === undefined || ms === null ? '' : duration(ms));

// valueColumns are about the messages that have the same value in the header that age-header names.
const valueColumns = [
  { title: 'Value', show: (v) => (v.other ? 'others' : h('code', null, v.value)) },
  { title: 'Ready', number: true, show: (v) => count(v.messages_ready) },
  { title: 'Oldest ready', number: true, show: (v) => age(v.oldest_ready_age_ms) },
  { title: 'Unacknowledged', number: true, show: (v) => count(v.messages_unacknowledged) },
  { title: 'Scheduled', number: true, show: (v) => count(v.messages_scheduled) },
];

// held says how many messages are somewhere, and how large they are together.
const held = (q, messages, size) => (q[messages] === undefined ? '– (no leader answers)' : `${count(q[messages])} (${bytes(q[size])})`);

// replicaButtons are what an administrator can do about the replicas of a queue.
async function replicaButtons(view, list, { vhost, name, replicated }) {
  if (!view.may('administrator')) return [];
  const nodes = await get(path('nodes'), { columns: 'name,running' }, { signal: view.signal });
  const replicas = path('queues', 'quorum', vhost, name, 'replicas');
  const lead = (node) => view.act(() => post(path('queues', vhost, name, 'actions'), { action: 'transfer_leadership', node }), `${node} leads the queue.`);
  const add = (node) => view.act(() => post(`${replicas}/add`, { node }), `${node} has a replica that votes.`);
  const drop = async (node) => {
    if (await confirm(`Remove the replica on ${node}?`, 'Remove it', `Its data is deleted on ${node}. The queue keeps ${count(list.length - 1)} of ${count(list.length)} replicas.`)) {
      await view.act(() => remove(`${replicas}/delete`, null, { body: { node } }), `${node} has no replica any more.`);
    }
  };
  return [
    list.filter((m) => m['Raft State'] === 'follower' && m.Membership === 'voter').map((m) => button(`Make ${m['Node Name']} the leader`, () => lead(m['Node Name']))),
    list.filter((m) => m['Raft State'] !== 'leader' && list.length > 1).map((m) => button(`Remove the replica on ${m['Node Name']}`, () => drop(m['Node Name']), { class: 'danger' })),
    nodes.filter((n) => replicated && n.running && !list.some((m) => m['Node Name'] === n.name)).map((n) => button(`Add a replica on ${n.name}`, () => add(n.name))),
  ];
}

// deadLetters says where the dead letters of a queue go, and how many are on their way.
function deadLetters(q) {
  const exchange = effective(q, 'dead-letter-exchange'), key = effective(q, 'dead-letter-routing-key');
  const depth = count(q.messages_dlx) + (q.messages_dlx_waiting ? `, ${count(q.messages_dlx_waiting)} of them without a target` : '');
  return [
    ['Dead letters go', exchange === undefined ? '' : ['to the exchange ', link(place('exchange', q.vhost, exchange), exchange === '' ? '(default)' : exchange), key === undefined ? '' : [' with the key ', h('code', null, key)]]],
    ['Dead letters under way', exchange === undefined && !q.messages_dlx ? '' : depth],
  ];
}

// pausedBy says who has the consumers handed nothing, why, and until when.
function pausedBy({ paused, pause }) {
  if (!paused) return '';
  if (!pause) return badge('by a policy', 'warn');
  return [badge(`by ${pause.by}`, 'warn'), ' ', ago(pause.since), pause.until && [', until ', left(pause.until)], pause.reason && `: ${pause.reason}`];
}

// prioritiesOf says how many messages have which priority, the first to be handed out first.
function prioritiesOf(counts) {
  const list = Object.entries(counts ?? {}).sort(([a], [b]) => b - a);
  return list.length > 0 && section('Priorities', pairs(list.map(([priority, n]) => [`Priority ${priority}`, count(n)])));
}

// expiryOf draws when messages expire. The node counts those within a time, sooner ones included.
function expiryOf(q) {
  if (q.messages_ready === undefined) return h('p', null, 'Not known: no leader answers.');
  if (!q.expiring) return h('p', null, 'No message that nobody holds will expire.');
  const counts = q.expiring.map((e, i) => e.messages - (q.expiring[i - 1]?.messages ?? 0));
  const spanOf = (i) => [q.expiring[i - 1]?.within_ms ?? 0, q.expiring[i].within_ms];
  const all = q.expiring.at(-1), [from, to] = spanOf(counts.indexOf(Math.max(...counts)));
  const what = `${all.messages === 1 ? '1 message expires' : `${count(all.messages)} messages expire`} within ${duration(all.within_ms)}, at most ${count(Math.max(...counts))} of them in ${duration(from)} to ${duration(to)}`;
  return bars(counts, spanOf, what, q.expiring.map((e) => `${e.within_ms} ${e.messages}`).join());
}

const memberColumns = [
  { title: 'Node', show: (m) => m['Node Name'] },
  { title: 'State', show: (m) => [badge(m['Raft State'], { leader: 'good', noproc: 'bad' }[m['Raft State']]), m.Quarantined && badge('quarantined', 'bad')] },
  { title: 'Votes', show: (m) => ({ voter: 'yes', non_voter: 'not yet' }[m.Membership] ?? m.Membership) },
  { title: 'Term', number: true, minor: true, show: (m) => count(m.Term) },
  { title: 'Last entry', number: true, show: (m) => count(m['Last Log Index']) },
  { title: 'Committed', number: true, minor: true, show: (m) => count(m['Commit Index']) },
  { title: 'Applied', number: true, show: (m) => count(m['Last Applied']) },
  { title: 'Behind', number: true, show: (m) => (m['Raft State'] === 'noproc' ? '–' : count(m.lag)) },
  { title: 'Snapshot', number: true, minor: true, show: (m) => (m['Snapshot Index'] < 0 ? '–' : count(m['Snapshot Index'])) },
];

async function publish(view, vhost, name) {
  await dialog(`Publish to ${name}`, [
    field('Payload', area('payload', { autofocus: true })), field('Delay', input('delay', { inputmode: 'numeric', pattern: '[0-9]*', placeholder: 'ms' }), 'Milliseconds until it is ready; nothing: at once'),
    field('Headers', area('headers', { rows: 2 }), 'A JSON object'), field('Properties', area('properties', { rows: 2 }, '{"delivery_mode": 2}'), 'A JSON object: content_type, message_id, expiration, priority, …'),
  ], 'Publish', async (f) => {
    const properties = object(f.properties.value, 'Properties'), headers = object(f.headers.value, 'Headers');
    if (f.delay.value !== '') headers['x-opt-delivery-delay'] = Number(f.delay.value);
    const answer = await post(exchangePath(vhost, '', 'publish'), { properties: { ...properties, headers: { ...properties.headers, ...headers } }, routing_key: name, payload: f.payload.value, payload_encoding: 'string' });
    if (!answer.routed) throw new Error('No queue has taken the message.');
    view.say('The message is confirmed.', 'good');
    view.refresh();
    return true;
  });
}

async function pause(view, at, name) {
  await dialog(`Pause the consumers of ${name}`, [
    field('Reason', input('reason', { autofocus: true, maxlength: 255 })),
    field('For', input('for', { inputmode: 'numeric', pattern: '[0-9]*', placeholder: 'ms' }), 'Milliseconds after which they are served again; nothing: until they are resumed'),
  ], 'Pause', async (f) => {
    await post(`${at}/pause`, { reason: f.reason.value, ...(f.for.value !== '' && { for: Number(f.for.value) }) });
    view.say('Its consumers are handed nothing.', 'good');
    view.refresh();
    return true;
  });
}

async function purge(view, at, name) {
  if (await confirm(`Purge ${name}?`, 'Purge', 'All ready messages are deleted.')) await view.act(() => remove(`${at}/contents`), 'The ready messages are gone.');
}

async function drop(view, at, name) {
  if (!await confirm(`Delete ${name}?`, 'Delete', 'The queue is deleted with all its messages.')) return;
  if (await view.act(() => remove(at), 'The queue is deleted.')) location.hash = '#/queues';
}
