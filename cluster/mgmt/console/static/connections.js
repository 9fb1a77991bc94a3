// Connections and channels of clients.

import { get, path, remove } from './client.js';
import { titles } from './chart.js';
import { badge, button, fill, h, link, pairs, place } from './dom.js';
import { ago, bytes, count, held, json, rate, rateOf, terms } from './format.js';
import { paged, Table } from './table.js';
import { dialog, field, input, section } from './view.js';

const heartbeat = (c) => (c.timeout === 0 ? 'none' : `${c.timeout} s`);
const stateBadge = (state) => badge(state, { running: 'good', blocked: 'bad', closing: 'warn' }[state]);

export function connections(view) {
  const columns = [
    { title: 'Name', sort: 'name', show: (c) => [link(place('connection', c.name), c.name), c.user_provided_name && [' ', h('small', null, c.user_provided_name)]] },
    { title: 'Virtual host', sort: 'vhost', minor: true, show: (c) => c.vhost },
    { title: 'User', sort: 'user', minor: true, show: (c) => c.user },
    { title: 'State', sort: 'state', show: (c) => stateBadge(c.state) },
    { title: 'Node', sort: 'node', minor: true, extra: true, show: (c) => c.node },
    { title: 'TLS', sort: 'ssl', minor: true, extra: true, show: (c) => (c.ssl ? c.ssl_protocol ?? 'yes' : 'no') },
    { title: 'Client', minor: true, show: (c) => [c.client_properties?.product, c.client_properties?.version].filter((x) => typeof x === 'string').join(' ') || '–' },
    { title: 'Heartbeat', sort: 'timeout', number: true, minor: true, show: (c) => heartbeat(c) },
    { title: 'Channels', sort: 'channels', number: true, show: (c) => count(c.channels) },
    { title: 'Received', sort: 'recv_oct', number: true, minor: true, extra: true, show: (c) => bytes(c.recv_oct) },
    { title: 'Sent', sort: 'send_oct', number: true, minor: true, extra: true, show: (c) => bytes(c.send_oct) },
    { title: 'Memory held', sort: 'held_memory.total', number: true, minor: true, extra: true, show: (c) => bytes(c.held_memory.total) },
    { title: 'Connected', sort: 'connected_at', minor: true, show: (c) => ago(c.connected_at) },
    { title: 'Actions', show: (c) => button('Close', () => close(view, c)) },
  ];
  view.show('Connections', paged(view, 'Connections', path('connections'), columns, { key: (c) => c.name, by: 'name', empty: 'Nobody is connected.' }));
}

// close closes a connection, with a reason that its client is told.
function close(view, c) {
  return dialog(`Close the connection of ${c.user}?`, [h('p', null, h('code', null, c.name)), field('Reason', input('reason', { maxlength: 200 }), 'The client is told so')], 'Close it', async (f) => {
    await remove(path('connections', c.name), null, { headers: f.reason.value ? { 'X-Reason': plain(f.reason.value) } : {} });
    view.say('The connection is closed.', 'good');
    view.refresh();
    return true;
  }, { danger: true });
}

// plain is a text that a header can carry.
function plain(text) {
  if (!/^[\x20-\x7e]*$/.test(text)) throw new Error('The reason may have letters, digits and signs of ASCII only.');
  return text;
}

export function connection(view, name) {
  const facts = h('div'), client = h('div'), parts = h('div');
  view.absent = `The connection ${name} is closed, or you may not see it.`;
  view.show(`Connection ${name}`, h('div', { class: 'buttons' }, button('Close', () => close(view, { name, user: facts.dataset.user ?? 'this client' }), { class: 'danger' })),
    section('State', facts), parts, section('Client', client));
  view.every(async () => {
    const c = await get(path('connections', name), null, { signal: view.signal });
    facts.dataset.user = c.user;
    if (!parts.firstChild) fill(parts, c.protocol === amqp10 ? sessions(view, name) : channelsOf(view, name));
    fill(facts, pairs([
      ['State', stateBadge(c.state)], ['User', c.user], ['Virtual host', c.vhost], ['Node', c.node], ['Connected', ago(c.connected_at)], ['Protocol', c.protocol], ['Container', c.container_id], ['Login', c.auth_mechanism],
      ['Heartbeat', heartbeat(c)], [c.protocol === amqp10 ? 'Sessions' : 'Channels', `${count(c.channels)} of ${count(c.channel_max)}`], ['Longest frame', bytes(c.frame_max)],
      ['Received', bytes(c.recv_oct)], ['Sent', bytes(c.send_oct)], ['To be sent', bytes(c.send_pend)], ['Memory held for it', held(c.held_memory)], ['TLS', c.ssl ? `${c.ssl_protocol}, ${c.ssl_cipher}` : 'no'], ['Certificate', c.peer_cert_subject],
    ]));
    fill(client, pairs(Object.entries(c.client_properties ?? {}).sort().map(([key, value]) => [key, typeof value === 'string' ? value : h('code', null, json(value))])));
  });
}

const amqp10 = 'AMQP 1-0';

const channelsOf = (view, name) => section('Channels', paged(view, 'Channels', path('connections', name, 'channels'), channelColumns, { key: (c) => c.name, by: 'number', empty: 'It has no channels.', named: false }));

// exhausted is a number that stops one side while it is 0.
const exhausted = (n) => (n === 0 ? badge('0', 'warn') : count(n));

const sessionColumns = [
  { title: 'Session', number: true, show: (s) => s.channel_number },
  { title: 'Incoming window', number: true, show: (s) => exhausted(s.incoming_window) },
  { title: 'Client’s incoming window', number: true, show: (s) => exhausted(s.remote_incoming_window) },
  { title: 'Client’s outgoing window', number: true, minor: true, extra: true, show: (s) => count(s.remote_outgoing_window) },
  { title: 'Next incoming id', number: true, minor: true, extra: true, show: (s) => s.next_incoming_id },
  { title: 'Next outgoing id', number: true, minor: true, extra: true, show: (s) => s.next_outgoing_id },
  { title: 'Unsettled', number: true, show: (s) => count(s.outgoing_unsettled_deliveries) },
  { title: 'Highest handle', number: true, minor: true, show: (s) => count(s.handle_max) },
];

const linkColumns = [
  { title: 'Session', number: true, show: (l) => l.session },
  { title: 'Handle', number: true, minor: true, show: (l) => l.handle },
  { title: 'Link', show: (l) => l.link_name },
];

const counts = [
  { title: 'Credit', number: true, show: (l) => count(l.credit) },
  { title: 'Delivery count', number: true, minor: true, show: (l) => l.delivery_count },
  { title: 'Longest message', number: true, minor: true, extra: true, show: (l) => (typeof l.max_message_size === 'number' ? bytes(l.max_message_size) : l.max_message_size) },
];

const incomingColumns = [
  ...linkColumns, { title: 'Target', show: (l) => l.target_address ?? 'as messages say' }, ...counts,
  { title: 'Settle mode', minor: true, extra: true, show: (l) => l.snd_settle_mode },
  { title: 'Unconfirmed', number: true, show: (l) => count(l.unconfirmed_messages) },
];

const outgoingColumns = [
  ...linkColumns, { title: 'Source', show: (l) => l.source_address }, { title: 'Queue', minor: true, show: (l) => l.queue_name }, ...counts,
  { title: 'Settled when sent', minor: true, extra: true, show: (l) => (l.send_settled ? 'yes' : 'no') },
  { title: 'Timed out', show: (l) => (l.consumer_timeout ? badge('yes', 'bad') : 'no') },
  { title: 'Filters', minor: true, show: (l) => l.filter.map((f) => h('code', { title: String(f.descriptor) }, `${f.name} ${json(f.value)}`)) },
];

// sessions shows the sessions of a connection of AMQP 1.0, and their links.
function sessions(view, name) {
  const table = new Table('Sessions', sessionColumns, (s) => String(s.channel_number), { empty: 'It has no sessions.' });
  const key = (l) => `${l.session} ${l.handle}`;
  const incoming = new Table('Incoming links', incomingColumns, key, { empty: 'The client publishes on none.' });
  const outgoing = new Table('Outgoing links', outgoingColumns, key, { empty: 'The client receives on none.' });
  view.every(async () => {
    const all = await get(path('connections', name, 'sessions'), null, { signal: view.signal });
    const links = (of) => all.flatMap((s) => s[of].map((l) => ({ session: s.channel_number, ...l })));
    table.show(all);
    incoming.show(links('incoming_links'));
    outgoing.show(links('outgoing_links'));
  });
  return [section('Sessions', table.element), section('Incoming links', incoming.element), section('Outgoing links', outgoing.element)];
}

const channelColumns = [
  { title: 'Channel', sort: 'name', show: (c) => link(place('channel', c.name), c.name) },
  { title: 'User', sort: 'user', minor: true, show: (c) => c.user },
  { title: 'State', sort: 'state', show: (c) => stateBadge(c.state) },
  { title: 'Mode', minor: true, show: (c) => (c.transactional ? 'transactions' : c.confirm ? 'confirms' : '–') },
  { title: 'Consumers', sort: 'consumer_count', number: true, show: (c) => count(c.consumer_count) },
  { title: 'Prefetch', sort: 'prefetch_count', number: true, minor: true, show: (c) => count(c.prefetch_count) },
  { title: 'Unacked', sort: 'messages_unacknowledged', number: true, show: (c) => count(c.messages_unacknowledged) },
  { title: 'Unconfirmed', sort: 'messages_unconfirmed', number: true, show: (c) => count(c.messages_unconfirmed) },
  { title: titles.publish, sort: 'message_stats.publish_details.rate', number: true, minor: true, show: (c) => rate(rateOf(c.message_stats, 'publish') ?? 0) },
  { title: titles.deliver_get, sort: 'message_stats.deliver_get_details.rate', number: true, minor: true, show: (c) => rate(rateOf(c.message_stats, 'deliver_get') ?? 0) },
  { title: titles.ack, sort: 'message_stats.ack_details.rate', number: true, minor: true, show: (c) => rate(rateOf(c.message_stats, 'ack') ?? 0) },
];

export function channels(view) {
  view.show('Channels', paged(view, 'Channels', path('channels'), channelColumns, { key: (c) => c.name, by: 'name', empty: 'No channel is open.' }));
}

export function channel(view, name) {
  const facts = h('div'), consumers = h('div');
  view.absent = `The channel ${name} is closed, or you may not see it.`;
  view.show(`Channel ${name}`, section('State', facts), section('Consumers', consumers));
  view.every(async () => {
    const c = await get(path('channels', name), null, { signal: view.signal });
    const stats = ['publish', 'confirm', 'deliver_get', 'redeliver', 'ack', 'return_unroutable'];
    fill(facts, pairs([
      ['State', stateBadge(c.state)], ['Connection', link(place('connection', c.connection_details.name), c.connection_details.name)], ['User', c.user], ['Virtual host', c.vhost], ['Node', c.node],
      ['Prefetch', count(c.prefetch_count)], ['Prefetch of all consumers', c.global_prefetch_count ? count(c.global_prefetch_count) : ''], ['Unacknowledged', count(c.messages_unacknowledged)],
      ['Unconfirmed', count(c.messages_unconfirmed)], ['Waiting for their queues', count(c.pending_raft_commands)], ['In a transaction', c.transactional ? `${count(c.messages_uncommitted)} publishes, ${count(c.acks_uncommitted)} acks` : ''],
      ...stats.map((s) => [titles[s], c.message_stats?.[s] ? `${count(c.message_stats[s])}, ${rate(rateOf(c.message_stats, s))}` : '']),
    ]));
    const list = c.consumer_details ?? [];
    fill(consumers, list.length === 0 ? h('p', null, 'It has no consumers.') : h('ul', null, list.map((x) => h('li', null, link(place('queue', x.queue.vhost, x.queue.name, 'consumers'), x.queue.name), ' ', h('code', null, x.consumer_tag), ' ', terms(x.arguments)))));
  });
}
