// The list of queues.

import { get, path, put } from './client.js';
import { badge, button, h, link, place, query } from './dom.js';
import { count, left, rate, rateOf } from './format.js';
import { paged } from './table.js';
import { area, dialog, field, input, object, select } from './view.js';

// stateOf is what matters most about a queue.
export function stateOf(q) {
  if (q.state !== 'running') return badge(q.state, 'bad');
  if (!q.leader) return badge('no leader', 'bad');
  if (q.online.length < q.members.length) return badge('replica away', 'warn');
  return badge('running', 'good');
}

// rateOfQueue is not known if the leader does not answer.
const rateOfQueue = (q, name) => rate(q.messages_ready === undefined ? undefined : rateOf(q.message_stats, name) ?? 0);

const columns = [
  { title: 'Virtual host', sort: 'vhost', minor: true, show: (q) => q.vhost },
  { title: 'Name', sort: 'name', show: (q) => link(place('queue', q.vhost, q.name), q.name) },
  { title: 'Type', sort: 'type', minor: true, extra: true, show: (q) => h('span', { class: 'word' }, q.type) },
  { title: 'State', sort: 'state', show: stateOf },
  { title: 'Leader', sort: 'leader', minor: true, extra: true, show: (q) => q.leader ?? '–' },
  { title: 'Replicas', minor: true, extra: true, show: (q) => `${q.online.length} of ${q.members.length}` },
  { title: 'Ready', sort: 'messages_ready', number: true, show: (q) => count(q.messages_ready) },
  { title: 'Unacked', sort: 'messages_unacknowledged', number: true, show: (q) => count(q.messages_unacknowledged) },
  { title: 'Scheduled', sort: 'messages_scheduled', number: true, minor: true, show: (q) => count(q.messages_scheduled) },
  { title: 'Retried later', sort: 'messages_delayed_retry', number: true, minor: true, extra: true, show: (q) => count(q.messages_delayed_retry) },
  { title: 'Locked', sort: 'messages_locked', number: true, minor: true, extra: true, show: (q) => count(q.messages_locked) },
  { title: 'Next expiry', sort: 'next_expiry_at', minor: true, show: (q) => left(q.next_expiry_at) },
  { title: 'Lease left', sort: 'lease_expires_at', minor: true, show: (q) => left(q.lease_expires_at) },
  { title: 'Consumers', sort: 'consumers', number: true, minor: true, show: (q) => count(q.consumers) },
  { title: 'Late consumers', sort: 'consumers_timed_out', number: true, minor: true, extra: true, show: (q) => (q.consumers_timed_out > 0 ? badge(count(q.consumers_timed_out), 'warn') : count(q.consumers_timed_out)) },
  { title: 'Expired', sort: 'messages_expired_total', number: true, minor: true, extra: true, show: (q) => count(q.messages_expired_total) },
  { title: 'In', sort: 'message_stats.publish_details.rate', number: true, minor: true, show: (q) => rateOfQueue(q, 'publish') },
  { title: 'Out', sort: 'message_stats.deliver_get_details.rate', number: true, minor: true, show: (q) => rateOfQueue(q, 'deliver_get') },
  { title: 'Policy', sort: 'policy', minor: true, extra: true, show: (q) => [q.policy || '–', q.operator_policy && ` and ${q.operator_policy}`] },
];

const needed = ['vhost', 'name', 'type', 'state', 'leader', 'online', 'members', 'messages_ready', 'messages_unacknowledged', 'messages_scheduled', 'messages_delayed_retry',
  'messages_locked', 'next_expiry_at', 'lease_expires_at', 'consumers', 'consumers_timed_out', 'messages_expired_total', 'message_stats.publish_details', 'message_stats.deliver_get_details', 'policy', 'operator_policy'];

// filters are those of the node, and what they let through.
const filters = [['', 'All queues'], ['leaderless', 'Without a leader'], ['minority', 'Without a majority'], ['late', 'With late consumers'], ['lease-ending', 'Lease ends within 1 h']];

export function queues(view, vhost, filter = '') {
  if (!filters.some(([name]) => name === filter)) filter = '';
  const choice = h('select', { 'aria-label': 'Which queues', on: { change: () => { location.hash = place('queues', vhost ?? '', choice.value) + query(); } } },
    filters.map(([value, title]) => h('option', { value, selected: value === filter }, title)));
  const list = paged(view, 'Queues', vhost ? path('queues', vhost) : path('queues'), columns, {
    key: (q) => `${q.vhost}\n${q.name}`, by: 'name', query: () => ({ columns: needed.join(','), filter }),
    controls: [vhostChoice(view, vhost, 'queues', filter), choice, button('Add a queue', () => add(view, vhost), { class: 'primary' })],
  });
  view.show('Queues', list);
}

// vhostChoice leads to the list of one vhost, or of all, and keeps what follows it in the address.
export function vhostChoice(view, vhost, page, ...more) {
  const choice = h('select', { 'aria-label': 'Virtual host', on: { change: () => { location.hash = place(page, choice.value, ...more) + query(); } } }, h('option', { value: '' }, 'All virtual hosts'));
  if (vhost) choice.append(h('option', { value: vhost, selected: true }, vhost));
  view.settled().then(() => vhostNames(view)).then((names) => {
    for (const name of names) if (name !== vhost) choice.append(h('option', { value: name }, name));
  }, () => {});
  return choice;
}

// vhostNames lists the first 500 vhosts that the user sees.
export async function vhostNames(view) {
  return (await get(path('vhosts'), { columns: 'name', sort: 'name', page: 1, page_size: 500 }, { signal: view.signal })).items.map((v) => v.name);
}

async function add(view, vhost) {
  const vhosts = vhost ? [vhost] : await vhostNames(view);
  let to;
  const done = await dialog('Add a queue', [
    field('Virtual host', select('vhost', vhosts)), field('Name', input('name', { required: true, maxlength: 255 })),
    field('Durable', select('durable', [['true', 'yes: replicated'], ['false', 'no: in the memory of one node']])),
    field('Arguments', area('arguments'), 'A JSON object, such as {"x-message-ttl": 60000, "x-dead-letter-exchange": "dead"}'),
  ], 'Add', async (f) => {
    to = place('queue', f.vhost.value, f.name.value);
    await put(path('queues', f.vhost.value, f.name.value), { durable: f.durable.value, arguments: object(f.arguments.value, 'Arguments') });
    return true;
  });
  if (done) location.hash = to;
}
