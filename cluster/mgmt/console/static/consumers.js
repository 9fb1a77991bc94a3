// Consumers, and how long they may hold what they have.

import { get, path, post } from './client.js';
import { badge, button, fill, link, place } from './dom.js';
import { ago, count, duration, left, now } from './format.js';
import { paged, Table } from './table.js';
import { confirm, section } from './view.js';

const source = { consumer: 'its own', queue: 'the queue’s argument', policy: 'a policy', node: 'the node', none: '–' };
const health = { up: 'good', 'timed-out': 'bad', quiescing: 'warn', silent: 'warn' };

// isClose reports whether a consumer has used up more than four fifths of its time.
const isClose = (c) => c.next_deadline > 0 && c.effective_timeout_ms > 0 && c.next_deadline - now() < c.effective_timeout_ms / 5;

// whereOf leads to the client's channel, or to its connection: sessions of AMQP 1.0, whose consumers have credit, have no
// page of their own, and of a timeout nobody knows which it was.
const whereOf = ({ channel_details: at, link_credit: credit }) => (at.name ? link(credit === undefined ? place('channel', at.name) : place('connection', at.connection_name), at.name) : '–');

const columns = [
  { title: 'Tag', sort: 'consumer_tag', show: (c) => c.consumer_tag },
  { title: 'Status', sort: 'status', show: (c) => [badge(c.status, health[c.status]), !c.active && badge('waits')] },
  { title: 'Channel', minor: true, show: (c) => whereOf(c) },
  { title: 'Unacked', sort: 'messages_unacknowledged', number: true, show: (c) => count(c.messages_unacknowledged) },
  { title: 'Prefetch', number: true, minor: true, extra: true, show: (c) => (c.link_credit !== undefined ? '–' : c.prefetch_count === 0 ? 'no limit' : count(c.prefetch_count)) },
  { title: 'Credit', number: true, minor: true, extra: true, show: (c) => (c.link_credit === undefined ? '–' : count(c.link_credit)) },
  { title: 'Oldest held for', sort: 'oldest_unacked_age_ms', number: true, show: (c) => (c.oldest_unacked_age_ms ? duration(c.oldest_unacked_age_ms) : '–') },
  { title: 'Deadline', sort: 'next_deadline', show: (c) => [left(c.next_deadline), isClose(c) && badge('close', 'warn')] },
  { title: 'Timeout', number: true, show: (c) => (c.effective_timeout_ms < 0 ? 'none' : duration(c.effective_timeout_ms)) },
  { title: 'Timeout set by', minor: true, extra: true, show: (c) => source[c.timeout_source] ?? c.timeout_source },
  { title: 'Taken back', sort: 'timed_out', number: true, show: (c) => (c.timed_out > 0 ? badge(count(c.timed_out), 'warn') : count(c.timed_out)) },
  { title: 'Late acks', number: true, minor: true, extra: true, show: (c) => count(c.consumer_timeout_late_acks_total) },
  { title: 'Lock', number: true, minor: true, extra: true, show: (c) => (c.lock_duration_ms ? duration(c.lock_duration_ms) : '–') },
  { title: 'Locks lost', number: true, minor: true, extra: true, show: (c) => count(c.lost_locks) },
  { title: 'Priority', number: true, minor: true, extra: true, show: (c) => c.priority },
];

const key = (c) => `${c.queue.vhost}\n${c.queue.name}\n${c.consumer_tag}\n${c.channel_details.name ?? c.node}`;

// cancelColumn has the buttons of administrators.
const cancelColumn = (view) => (view.may('administrator') ? [{ title: 'Actions', show: (c) => c.channel_details.name && button('Cancel', () => cancel(view, c)) }] : []);

async function cancel(view, c) {
  const tag = c.consumer_tag, channel = c.channel_details.name;
  if (await confirm(`Cancel the consumer ${tag}?`, 'Cancel it', 'It gets no more messages, and its client is told. What it holds stays with it until it is settled.')) {
    await view.act(() => post(path('queues', c.queue.vhost, c.queue.name, 'actions'), { action: 'cancel_consumer', tag, channel }), `The consumer ${tag} is cancelled.`);
  }
}

// actions are what becomes of a consumer at a timeout.
const actions = { cancel: 'consumer cancelled', suspend: 'consumer suspended', channel_close: 'channel closed', get: 'channel closed, for a get' };

const timeoutColumns = [
  { title: 'When', sort: 'at', show: (t) => ago(t.at) },
  { title: 'Tag', sort: 'consumer_tag', show: (t) => t.consumer_tag },
  { title: 'Messages', sort: 'messages', number: true, show: (t) => count(t.messages) },
  { title: 'Held for', sort: 'held_ms', number: true, show: (t) => duration(t.held_ms) },
  { title: 'Timeout', sort: 'timeout_ms', number: true, minor: true, show: (t) => duration(t.timeout_ms) },
  { title: 'Action', sort: 'action', show: (t) => (t.action ? badge(actions[t.action] ?? t.action, t.action === 'suspend' ? 'warn' : 'bad') : '–') },
  { title: 'Channel', minor: true, show: (t) => whereOf(t) },
  { title: 'User', minor: true, show: (t) => t.channel_details.user ?? '–' },
  { title: 'Node', sort: 'node', minor: true, show: (t) => t.node || '–' },
];

// lastTimeouts lists the timeouts that nodes remember.
function lastTimeouts(view, at, columns) {
  return section('Last timeouts', paged(view, 'Last timeouts', at, columns, {
    key: (t) => JSON.stringify([t.at, t.queue.vhost, t.queue.name, t.consumer_tag, t.leader, t.channel_details.name]), by: 'at', down: true, named: false,
    empty: 'No consumer has held a message for too long, as far as the nodes remember.',
  }));
}

// held is how many consumers are asked for, those first that hold a message the longest.
const held = 500;

// closest lists those of all consumers that have little time left.
function closest(view) {
  const shown = columns.filter((c) => ['Tag', 'Channel', 'Unacked', 'Oldest held for', 'Deadline', 'Timeout'].includes(c.title));
  const table = new Table('Close to the deadline', [queueColumn('consumers'), ...shown, ...cancelColumn(view)], key, { empty: `Of the ${held} consumers that have held a message the longest, none has used up more than 80 % of its time.` });
  view.every(async () => {
    const longest = await get(path('consumers'), { page: 1, page_size: held, sort: 'oldest_unacked_age_ms', sort_reverse: true }, { signal: view.signal });
    table.show(longest.items.filter(isClose).sort((a, b) => a.next_deadline - b.next_deadline));
  });
  return section('Close to the deadline', table.element);
}

export function queueConsumers(view, body, at) {
  fill(body, section('Consumers', paged(view, 'Consumers', `${at}/consumers`, [...columns, ...cancelColumn(view)], { key, by: 'consumer_tag', named: false })), lastTimeouts(view, `${at}/timeouts`, timeoutColumns));
}

const queueColumn = (of) => ({ title: 'Queue', sort: 'queue.name', show: (x) => link(place('queue', x.queue.vhost, x.queue.name, of), x.queue.name) });

export function consumers(view) {
  const all = [queueColumn('consumers'), ...columns, ...cancelColumn(view)];
  view.show('Consumers', closest(view), section('Consumers', paged(view, 'Consumers', path('consumers'), all, { key, by: 'queue.name', named: false })),
    lastTimeouts(view, path('quorate', 'timeouts'), [timeoutColumns[0], queueColumn('consumers'), ...timeoutColumns.slice(1)]));
}
