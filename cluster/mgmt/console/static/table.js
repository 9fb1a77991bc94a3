// Tables. The node sorts, filters and cuts lists into pages; a table shows one page.

import { Failure, get } from './client.js';
import { button, fill, h, query as inAddress } from './dom.js';
import { count } from './format.js';

// Table is a table whose rows are kept as long as their objects are there: a row that has the focus
// keeps it when the table is read again.
//
// A column has a title, show (of an item: what h takes as a child), and may have sort (the name by
// which the node sorts), number (it is aligned to the right), minor (it is left out on phones) and extra
// (it is shown on wide screens only). The column of actions stays in sight when the table is scrolled.
export class Table {
  #rows = new Map();
  #body = h('tbody');

  constructor(caption, columns, key, { empty = 'There are none.', sorted, onSort } = {}) {
    Object.assign(this, { columns, key, empty, sorted, onSort });
    this.heads = columns.map((c) => h('th', { scope: 'col', class: classOf(c) }, c.sort && onSort ? button(c.title, () => onSort(c.sort), { class: 'sort' }) : c.title));
    this.element = scrolled(caption, undefined, h('table', null, h('caption', null, caption), h('thead', null, h('tr', null, this.heads)), this.#body));
    this.mark();
  }

  // mark shows by which column the table is sorted.
  mark() {
    this.columns.forEach((c, i) => {
      const by = c.sort && this.sorted?.by === c.sort ? (this.sorted.down ? 'descending' : 'ascending') : 'none';
      if (c.sort && this.onSort) this.heads[i].setAttribute('aria-sort', by);
    });
  }

  show(items) {
    this.mark();
    const rows = new Map();
    for (const item of items) {
      const key = this.key(item);
      const row = this.#rows.get(key) ?? h('tr', null, this.columns.map((c) => h('td', { class: classOf(c) }, h('div', { class: 'cell' }))));
      this.columns.forEach((c, i) => fill(row.children[i].firstChild, c.show(item)));
      rows.set(key, row);
    }
    this.#rows = rows;
    const list = rows.size > 0 ? [...rows.values()] : [h('tr', { class: 'none' }, h('td', { colspan: this.columns.length }, this.empty))];
    if (list.length !== this.#body.children.length || list.some((row, i) => row !== this.#body.children[i])) this.#body.replaceChildren(...list);
  }
}

const classOf = (c) => [c.number && 'number', c.minor && 'minor', c.extra && 'extra', c.title === 'Actions' && 'actions'].filter(Boolean).join(' ') || undefined;

// scrolled holds what may be wider than the page. Its edge says if there is more. A key keeps it from being
// replaced by an equal one.
export function scrolled(label, key, content) {
  const element = h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': label, data: { key } }, content);
  const mark = () => element.classList.toggle('cut', element.scrollLeft + element.clientWidth < element.scrollWidth - 1);
  const resized = new ResizeObserver(mark);
  resized.observe(element);
  resized.observe(content);
  element.addEventListener('scroll', mark, { passive: true });
  return element;
}

// paged is a table of what a path lists, with a filter by name and pages. query is asked for each
// time. named: the objects have names, by which they can be filtered. kept: the address holds the filter
// and the order, for reloads and for other lists of the same objects.
export function paged(view, caption, path, columns, { key, by, down = false, query, empty, controls, named = true, kept = named } = {}) {
  const before = new URLSearchParams(kept ? inAddress() : '');
  const state = { page: 1, name: before.get('name') ?? '', regex: before.has('use_regex'), by: before.get('sort') ?? by, down: before.has('sort') ? before.has('sort_reverse') : down };
  const info = h('span', { class: 'info', role: 'status' });
  const back = button('Previous', () => turn(-1));
  const forth = button('Next', () => turn(1));
  const table = new Table(caption, columns, key, { empty, sorted: state, onSort: sort });
  let timer;
  const filter = h('input', {
    type: 'search', 'aria-label': `Filter ${caption.toLowerCase()} by name`, placeholder: 'Filter by name', spellcheck: 'false', autocomplete: 'off', value: state.name,
    on: { change: narrow, input: () => { clearTimeout(timer); timer = setTimeout(narrow, 300); } },
  });
  const regex = h('input', { type: 'checkbox', checked: state.regex, on: { change: narrow } });

  function narrow() {
    clearTimeout(timer);
    if (filter.value !== state.name || regex.checked !== state.regex) change({ name: filter.value, regex: regex.checked });
  }
  function change(by) {
    if (view.signal.aborted) return;
    Object.assign(state, by, { page: 1 });
    if (kept) {
      const now = Object.entries({ name: state.name, use_regex: state.regex, sort: state.by, sort_reverse: state.down }).filter(([, value]) => value);
      history.replaceState(null, '', `${location.hash.split('?')[0]}?${new URLSearchParams(now)}`);
    }
    view.refresh();
  }
  function turn(by) {
    state.page = Math.max(1, state.page + by);
    view.refresh();
  }
  function sort(name) {
    change({ down: state.by === name ? !state.down : false, by: name });
  }
  async function read() {
    let answer;
    try {
      answer = await get(typeof path === 'function' ? path() : path, {
        page: state.page, page_size: 50, name: state.name, use_regex: state.regex || undefined, sort: state.by, sort_reverse: state.down || undefined, ...query?.(),
      }, { signal: view.signal });
    } catch (failure) {
      if (!(failure instanceof Failure) || failure.error !== 'page_out_of_range' || state.page === 1) throw failure;
      state.page = 1; // what was on this page is gone
      return read();
    }
    table.show(answer.items);
    const first = (answer.page - 1) * answer.page_size;
    fill(info, answer.filtered_count === 0 ? 'None' : `${count(first + 1)}–${count(first + answer.item_count)} of ${count(answer.filtered_count)}`,
      answer.filtered_count < answer.total_count && `, ${count(answer.total_count)} in all`);
    back.disabled = answer.page <= 1;
    forth.disabled = answer.page >= answer.page_count;
    return answer;
  }
  view.every(read);
  const element = h('div', { class: 'listing' },
    h('div', { class: 'controls' }, named && [filter, h('label', { class: 'check' }, regex, 'regular expression')], controls, h('span', { class: 'pages' }, info, back, forth)), table.element);
  return element;
}
