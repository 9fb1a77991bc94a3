// What RabbitMQ deprecates and clients use here, and the versions of the replicated state.

import { get, path } from './client.js';
import { badge, fill, h } from './dom.js';
import { paged, Table } from './table.js';
import { section } from './view.js';

export function features(view) {
  const hint = h('p');
  const table = new Table('Deprecated features', [
    { title: 'Name', show: (f) => f.name },
    { title: 'In use', show: (f) => (f.used ? badge('in use', 'warn') : 'no') },
    { title: 'State', minor: true, show: (f) => f.state },
    { title: 'What it is', show: (f) => f.desc },
  ], (f) => f.name);
  view.show('Features', section('Deprecated features', hint, table.element), section('Feature flags', paged(view, 'Feature flags', path('feature-flags'), [
    { title: 'Name', sort: 'name', show: (f) => f.name },
    { title: 'State', sort: 'state', show: (f) => badge(f.state, f.state === 'enabled' ? 'good' : 'warn') },
    { title: 'Stability', minor: true, show: (f) => f.stability },
    { title: 'What it is', show: (f) => f.desc },
  ], { key: (f) => f.name, by: 'name' }), h('p', null, h('small', null, 'A version is enabled by itself as soon as all nodes support it.'))));
  view.every(async () => {
    const [all, used] = await Promise.all(['', 'used'].map((rest) => get(path('deprecated-features', ...(rest ? [rest] : [])), null, { signal: view.signal })));
    const names = new Set(used.map((f) => f.name));
    fill(hint, names.size === 0 ? 'No deprecated feature is in use.' : 'RabbitMQ will do without what is in use here; quorate goes on serving it.');
    table.show(all.map((f) => ({ ...f, used: names.has(f.name) })));
  });
}
