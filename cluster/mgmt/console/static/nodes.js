// The nodes of the cluster, and what is done with the one that the page is from.

import { check, get, path, post } from './client.js';
import { badge, button, fill, h, pairs } from './dom.js';
import { bytes, count, duration, held, left, now } from './format.js';
import { Table } from './table.js';
import { confirm, section } from './view.js';

// known shows a number of a node, if the node says what it is.
const known = (n, shown) => (n.running && n.answers ? shown : '–');

export const nodeColumns = [
  { title: 'Node', show: (n) => n.name },
  { title: 'State', show: nodeState },
  { title: 'Up for', number: true, show: (n) => known(n, duration(n.uptime)) },
  { title: 'Memory used', number: true, show: (n) => known(n, [bytes(n.mem_used), h('small', null, ` of ${bytes(n.mem_limit)}`), n.mem_alarm && badge('alarm', 'bad')]) },
  { title: 'Held for clients', number: true, minor: true, extra: true, show: (n) => known(n, bytes(n.held_memory.total)) },
  { title: 'Disk free', number: true, show: (n) => known(n, [bytes(n.disk_free), n.disk_free_alarm && badge('alarm', 'bad')]) },
  { title: 'Disk alarm below', number: true, minor: true, extra: true, show: (n) => known(n, bytes(n.disk_free_limit)) },
  { title: 'Leaders', number: true, show: (n) => known(n, `${count(n.leaders)} of ${count(n.replicas)}`) },
  { title: 'Catching up', number: true, minor: true, show: (n) => known(n, n.learners > 0 ? badge(count(n.learners), 'warn') : count(n.learners)) },
  { title: 'Sync', number: true, minor: true, show: (n) => known(n, n.io_sync_avg_time ? `${n.io_sync_avg_time.toFixed(2)} ms` : '–') },
  { title: 'Clock ahead', number: true, minor: true, show: (n) => known(n, duration(n.clock_offset_ms)) },
  { title: 'Files', number: true, minor: true, extra: true, show: (n) => known(n, `${count(n.fd_used)} of ${count(n.fd_total)}`) },
  { title: 'Goroutines', number: true, minor: true, extra: true, show: (n) => known(n, count(n.proc_used)) },
];

export function nodeState(n) {
  if (!n.running) return badge('down', 'bad');
  if (!n.answers) return badge('does not answer', 'bad');
  return n.being_drained ? badge('drained', 'warn') : badge('running', 'good');
}

// soon is how long before its end a certificate is marked, in ms.
const soon = 30 * 86400000;

const ends = (at) => [left(at), at && at < now() + soon && badge(at < now() ? 'expired' : 'soon', at < now() ? 'bad' : 'warn')];

const certificateColumns = [
  { title: 'Node', show: (c) => c.node },
  { title: 'For', show: (c) => h('span', { title: c.certfile }, c.protocol) },
  { title: 'Expires', show: (c) => ends(c.expires_at) },
  { title: 'Authorities expire', show: (c) => h('span', { title: c.cacertfile }, ends(c.ca_expires_at)) },
];

// balanceOf says how evenly the leaders are spread over the nodes that run.
function balanceOf(nodes) {
  const led = nodes.filter((n) => n.running && n.answers).map((n) => n.leaders);
  return led.length === 0 ? '' : `Each node that runs leads ${count(Math.min(...led))} to ${count(Math.max(...led))} queues.`;
}

export function nodes(view) {
  const table = new Table('Nodes', nodeColumns, (n) => n.name), balance = h('p');
  const certificates = new Table('Certificates', certificateColumns, (c) => `${c.node} ${c.protocol} ${c.certfile}`, { empty: 'No node presents a certificate.' });
  const list = [section('Nodes', table.element, balance), section('Certificates', certificates.element)];
  const read = async () => {
    const all = await get(path('nodes'), null, { signal: view.signal });
    table.show(all);
    fill(balance, balanceOf(all));
    certificates.show(all.flatMap((n) => n.certificates.map((c) => ({ ...c, node: n.name }))));
  };
  if (!view.may('administrator')) {
    view.show('Nodes', ...list);
    view.every(read);
    return;
  }
  const title = h('p'), facts = h('div'), peers = new Table('Links to the other nodes', peerColumns, (p) => p.node), clock = h('div');
  const clocks = new Table('Clocks of the other nodes', clockColumns, (p) => p.node);
  view.show('Nodes', ...list, section('This node', title, h('div', { class: 'buttons' }, button('Drain', drain), button('Revive', revive), button('Rebalance leaders', rebalance)), facts),
    section('Links', peers.element), section('Clock', clock, clocks.element));
  let me = '';
  view.every(read);
  view.every(async () => {
    const s = await get(path('quorate', 'status'), null, { signal: view.signal });
    me = s.node;
    fill(title, 'Drain and revive are about the node that this page is from: ', h('strong', null, me), '.');
    fill(facts, pairs([
      ['Serves clients', s.ready ? badge('yes', 'good') : [badge('no', 'bad'), s.not_ready]], ['Up for', duration(s.uptime)], ['Leader of the catalog', s.catalog_leader || '–'],
      ['Queues of the cluster', count(s.queues)], ['Replicas here', count(s.replicas)], ['Leaders here', count(s.leaders)], ['Alarms', s.alarms?.join(', ')], ['Memory held for clients', held(s.held_memory)], ['Oldest write to the disk under way for', s.disk_wait_ms ? duration(s.disk_wait_ms) : ''],
      ['Leaderships given up for lack of progress', count(s.resignations_total)], ['Version of the replicated state', s.fsm_version], ['Data folder', s.data_dir],
      ['Listeners', (s.listeners ?? []).map((l) => `${l.protocol} ${l.address}${l.speaks ? ` (${l.speaks.join(', ')})` : ''}`).join(', ')],
    ]));
    peers.show(s.peers ?? []);
  });
  view.every(async () => {
    const c = await get(path('quorate', 'clock'), null, { signal: view.signal });
    fill(clock, pairs([
      ['This clock is ahead of the median by', duration(c.offset_ms)], ['Largest allowed', duration(c.max_skew_ms)], ['State', c.skewed ? badge('wrong', 'bad') : c.agreed ? badge('agrees with a majority', 'good') : badge('no majority has been read', 'warn')],
      ['Jumps refused', count(c.jumps_refused)],
    ]));
    clocks.show(c.peers ?? []);
  });

  async function drain() {
    const critical = await check(path('health', 'checks', 'node-is-quorum-critical')).catch(() => null);
    const warning = critical?.status === 'failed' ? ` ${count(critical.queues?.length ?? 0)} queues would lose their majority if it were stopped.` : '';
    if (await confirm(`Drain the node ${me}?`, 'Drain it', `Its clients are disconnected, and it gives its leaderships away; it takes no clients until it is revived or started again.${warning}`)) {
      await view.act(() => post(path('quorate', 'drain'), {}), (d) => `${d.node} is drained: ${count(d.moved)} leaderships moved, ${count(d.left)} left.`);
    }
  }
  function revive() {
    view.act(() => post(path('quorate', 'revive'), {}), () => `${me} serves clients.`);
  }
  function rebalance() {
    view.act(() => post(path('quorate', 'rebalance'), { vhost_pattern: '', queue_pattern: '' }), (r) => `${count(r.moved)} leaderships moved, ${count(r.left)} could not be moved.`);
  }
}

const peerColumns = [
  { title: 'Node', show: (p) => p.node },
  { title: 'State', show: (p) => [p.alive ? badge('up', 'good') : badge('down', 'bad'), p.alive && !p.linked && badge('no link', 'bad')] },
  { title: 'Round trip', number: true, show: (p) => (p.round_trip_us ? `${(p.round_trip_us / 1000).toFixed(2)} ms` : '–') },
  { title: 'To be sent', number: true, show: (p) => bytes(p.backlog_bytes) },
  { title: 'Address', minor: true, show: (p) => p.address },
];

const clockColumns = [
  { title: 'Node', show: (p) => p.node },
  { title: 'Ahead of this one by', number: true, show: (p) => (p.known ? duration(p.offset_ms) : '–') },
  { title: 'Read', number: true, minor: true, show: (p) => (p.known ? `${duration(p.age_ms)} ago` : 'never') },
];
