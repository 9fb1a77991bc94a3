// The nodes of the cluster.

import { badge } from './dom.js';
import { bytes, count, duration } from './format.js';

export const nodeColumns = [
  { title: 'Node', show: (n) => n.name },
  { title: 'State', show: nodeState },
  { title: 'Up for', number: true, show: (n) => (n.running ? duration(n.uptime) : '–') },
  { title: 'Memory', number: true, show: (n) => [bytes(n.mem_used), n.mem_alarm && badge('alarm', 'bad')] },
  { title: 'limit', number: true, minor: true, show: (n) => bytes(n.mem_limit) },
  { title: 'Disk free', number: true, show: (n) => [bytes(n.disk_free), n.disk_free_alarm && badge('alarm', 'bad')] },
  { title: 'limit', number: true, minor: true, show: (n) => bytes(n.disk_free_limit) },
  { title: 'Files', number: true, minor: true, show: (n) => `${count(n.fd_used)} of ${count(n.fd_total)}` },
  { title: 'Goroutines', number: true, minor: true, show: (n) => count(n.proc_used) },
];

export function nodeState(n) {
  if (!n.running) return badge('down', 'bad');
  return n.being_drained ? badge('drained', 'warn') : badge('running', 'good');
}
