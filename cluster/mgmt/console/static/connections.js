// Connections and channels of clients.

import { get, path, remove } from './client.js';
import { titles } from './chart.js';
import { badge, button, fill, h, link, pairs, place } from './dom.js';
import { ago, bytes, count, held, json, rate, rateOf, terms } from './format.js';
import { paged } from './table.js';
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
  const facts = h('div'), client = h('div');
  const list = paged(view, 'Channels', path('connections', name, 'channels'), channelColumns, { key: (c) => c.name, by: 'number', empty: 'It has no channels.', named: false });
  view.absent = `The connection ${name} is closed, or you may not see it.`;
  view.show(`Connection ${name}`, h('div', { class: 'buttons' }, button('Close', () => close(view, { name, user: facts.dataset.user ?? 'this client' }), { class: 'danger' })),
    section('State', facts), section('Channels', list), section('Client', client));
  view.every(async () => {
    const c = await get(path('connections', name), null, { signal: view.signal });
    facts.dataset.user = c.user;
    fill(facts, pairs([
      ['State', stateBadge(c.state)], ['User', c.user], ['Virtual host', c.vhost], ['Node', c.node], ['Connected', ago(c.connected_at)], ['Protocol', c.protocol], ['Login', c.auth_mechanism],
      ['Heartbeat', heartbeat(c)], ['Channels', `${count(c.channels)} of ${count(c.channel_max)}`], ['Longest frame', bytes(c.frame_max)],
      ['Received', bytes(c.recv_oct)], ['Sent', bytes(c.send_oct)], ['To be sent', bytes(c.send_pend)], ['Memory held for it', held(c.held_memory)], ['TLS', c.ssl ? `${c.ssl_protocol}, ${c.ssl_cipher}` : 'no'], ['Certificate', c.peer_cert_subject],
    ]));
    fill(client, pairs(Object.entries(c.client_properties ?? {}).sort().map(([key, value]) => [key, typeof value === 'string' ? value : h('code', null, json(value))])));
  });
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
