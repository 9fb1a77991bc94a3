// The cluster at a glance: health, totals, what clients do, and the nodes.

import { Chart, lengthsOf, ratesOf, samples, titles } from './chart.js';
import { check, get, path } from './client.js';
import { badge, fill, h, link, place } from './dom.js';
import { count, duration, left, rate, rateOf, several } from './format.js';
import { nodeColumns } from './nodes.js';
import { Table } from './table.js';
import { section } from './view.js';

// counters are those of message_stats that are charted, and all that are listed.
const charted = [['publish', '--line-1'], ['confirm', '--line-2'], ['deliver_get', '--line-3'], ['ack', '--line-4'], ['redeliver', '--line-5']];
const listed = [
  ['publish', titles.publish], ['confirm', titles.confirm], ['return_unroutable', titles.return_unroutable], ['drop_unroutable', 'Dropped, without a route'],
  ['deliver', 'Delivered to consumers'], ['deliver_no_ack', 'Delivered to consumers, no ack needed'], ['get', 'Got'], ['get_no_ack', 'Got, no ack needed'], ['redeliver', titles.redeliver], ['ack', titles.ack],
];
const lengths = [['messages_ready', '--line-1'], ['messages_unacknowledged', '--line-3']];

const withoutLeader = 'quorum-queues-without-elected-leaders';

// checks are the health checks that are shown, and what they say if they pass.
const checks = [
  [['alarms'], 'No alarms'],
  [[withoutLeader, 'all-vhosts'], 'Every queue has a leader'],
  [['leaders-make-progress'], 'Queues led by this node make progress'],
  [['closed-replicas'], 'Replicas on this node are open'],
  [['unproven-replicas'], 'Replicas on this node are up to date'],
  [['quarantined-queues'], 'No queue is quarantined on this node'],
];

export function overview(view) {
  const health = h('ul', { class: 'health' });
  const totals = h('div', { class: 'cards' });
  const next = h('p'), unknown = h('p', { class: 'unknown' });
  const rates = new Chart(view, 'Messages per second', charted, rate);
  const queued = new Chart(view, 'Messages in queues', lengths, count);
  const counters = new Table('Counts since the nodes started', [
    { title: 'Messages', show: ([, title]) => title },
    { title: 'Per second', number: true, show: ([name, , stats]) => rate(rateOf(stats, name) ?? 0) },
    { title: 'Total', number: true, show: ([name, , stats]) => count(stats[name] ?? 0) },
  ], ([name]) => name);
  const churn = new Table('Connections, channels and queues', [
    { title: 'Event', show: ([, title]) => title },
    { title: 'Per second', number: true, show: ([name, , rates]) => rate(rateOf(rates, name) ?? 0) },
    { title: 'Total', number: true, show: ([name, , rates]) => count(rates[name] ?? 0) },
  ], ([name]) => name);
  const nodes = view.may('monitoring') && new Table('Nodes', nodeColumns, (n) => n.name);
  const clocks = h('p');
  let latest, leaderless;

  view.show('Overview', section('Health', health), section('Now', totals, unknown, next), section('Rates', rates.element), section('Queued', queued.element),
    nodes && section('Nodes', nodes.element, clocks), section('Counts', h('div', { class: 'columns' }, counters.element, churn.element)));

  function showTotals() {
    const q = latest.queue_totals, objects = latest.object_totals;
    const known = objects.queues - q.queues_unknown;
    const held = (title, n, to) => card(title, known > 0 || objects.queues === 0 ? n : undefined, to, q.queues_unknown > 0);
    fill(totals, held('Ready', q.messages_ready), held('Unacknowledged', q.messages_unacknowledged), held('Scheduled', q.messages_scheduled),
      held('Waiting for a retry', q.messages_delayed - q.messages_scheduled), held('Dead letters under way', q.messages_dlx),
      held('Expire within 1 min', q.messages_expiring_within_minute, '#/time'), held('Expire within 1 h', q.messages_expiring_within_hour, '#/time'),
      card('Queues', objects.queues, '#/queues'), card('Without a leader', leaderless, place('queues', '', 'leaderless')), card('Connections', objects.connections, '#/connections'),
      card('Channels', objects.channels, '#/channels'), held('Consumers', objects.consumers, '#/consumers'));
    fill(unknown, q.queues_unknown > 0 && `${several(q.queues_unknown, 'queue')} of ${count(objects.queues)} ${q.queues_unknown === 1 ? 'has' : 'have'} no leader that answers: what ${q.queues_unknown === 1 ? 'it holds' : 'they hold'} is not known, and not in these numbers.`);
  }
  view.every(async () => {
    const o = await get(path('overview'), samples, { signal: view.signal });
    const q = o.queue_totals;
    latest = o;
    showTotals();
    fill(next, q.next_expiry_at ? ['The next message expires ', left(q.next_expiry_at), '.'] : '');
    rates.show(ratesOf(o.message_stats, charted.map(([name]) => name)));
    queued.show(lengthsOf(q, lengths.map(([name]) => name)));
    counters.show(listed.map(([name, title]) => [name, title, o.message_stats]));
    churn.show([['connection_created', 'Connections opened'], ['connection_closed', 'Connections closed'], ['channel_created', 'Channels opened'], ['channel_closed', 'Channels closed'],
      ['queue_declared', 'Queues declared'], ['queue_created', 'Queues created'], ['queue_deleted', 'Queues deleted']].map(([name, title]) => [name, title, o.churn_rates]));
  });
  view.every(async () => {
    const answers = await Promise.all(checks.map(([names]) => check(path('health', 'checks', ...names), { signal: view.signal })));
    leaderless = (answers[checks.findIndex(([names]) => names[0] === withoutLeader)].queues ?? []).length;
    if (latest) showTotals();
    fill(health, answers.map((a, i) => h('li', null, a.status === 'ok' ? [badge('ok', 'good'), checks[i][1]] : [badge('failed', 'bad'), a.reason, details(a, checks[i][0][0])])));
  });
  if (!nodes) return;
  view.every(async () => {
    const all = await get(path('nodes'), null, { signal: view.signal });
    nodes.show(all);
    fill(clocks, apart(all.filter((n) => n.running && n.answers).map((n) => n.clock_offset_ms)));
  });
}

// apart says how far clocks are apart, given by how far each is ahead of their median.
function apart(offsets) {
  return offsets.length < 2 ? '' : `The clocks of the ${count(offsets.length)} nodes that run are within ${duration(Math.max(...offsets) - Math.min(...offsets))}.`;
}

// card shows a number; least: there may be more.
function card(title, n, to, least) {
  const value = h('span', { class: 'value' }, least && n !== undefined && h('small', null, 'at least '), count(n));
  return h('div', { class: 'card' }, h('span', null, title), to ? link(to, value) : value);
}

// details names the first of what a check is about.
function details(answer, of) {
  const alarms = (answer.alarms ?? []).map((a) => `${a.resource} on ${a.node}`);
  const all = answer.queues ?? [];
  const queues = all.slice(0, 10).map((q) => (q.virtual_host ? link(place('queue', q.virtual_host, q.name), q.readable_name) : q.readable_name));
  return h('ul', null, [...alarms, ...queues].map((x) => h('li', null, x)), all.length > 10 && h('li', null, `and ${count(all.length - 10)} more`),
    all.length > 0 && of === withoutLeader && h('li', null, link(place('queues', '', 'leaderless'), `List them (${count(all.length)})`)));
}
