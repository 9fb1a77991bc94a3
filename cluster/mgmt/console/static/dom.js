// Elements are made here only. Whatever comes from the cluster is set as text; there is no way to set
// markup, styles or handlers by name.

const allowed = new Set(['autocomplete', 'autofocus', 'checked', 'cols', 'colspan', 'datetime', 'disabled', 'download', 'for', 'id', 'inputmode',
  'list', 'max', 'maxlength', 'method', 'min', 'multiple', 'name', 'open', 'pattern', 'placeholder', 'readonly', 'required', 'role', 'rows', 'scope',
  'selected', 'spellcheck', 'step', 'tabindex', 'title', 'type', 'value', 'accept']);

// drawn are attributes of drawings besides those above.
const drawn = new Set(['d', 'height', 'rx', 'text-anchor', 'viewBox', 'width', 'x', 'y']);
const drawings = 'http://www.w3.org/2000/svg';

// h makes an element. Attributes are those above, class, on (handlers by event), data (by name),
// aria-…, and href, which only leads to a place within the page or to text made by it. Children are
// elements, texts, numbers and lists of these; null, undefined and false are left out.
export function h(tag, attributes, ...children) {
  return make(document.createElement(tag), attributes, children);
}

// draw makes an element of a drawing (SVG), like h.
export function draw(tag, attributes, ...children) {
  return make(document.createElementNS(drawings, tag), attributes, children);
}

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'on') {
      for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    } else if (name === 'class') {
      element.setAttribute('class', value);
    } else if (name === 'data') {
      for (const [key, text] of Object.entries(value)) if (text !== undefined && text !== null) element.dataset[key] = text;
    } else if (name === 'href' && /^(#|blob:)/.test(value)) {
      element.setAttribute('href', value);
    } else if (allowed.has(name) || element.namespaceURI === drawings && drawn.has(name) || name.startsWith('aria-')) {
      element.setAttribute(name, value === true ? '' : value);
    } else {
      throw new Error(`attribute ${name} is not allowed`);
    }
  }
  element.append(...nodes(children));
  return element;
}

// nodes turns children as h takes them into what append takes.
export function nodes(children) {
  return children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false).map((c) => (c instanceof Node ? c : String(c)));
}

// fill replaces what an element contains, unless it is the same already: so what is focused or
// selected in a part that does not change stays so.
export function fill(element, ...children) {
  const next = document.createDocumentFragment();
  next.append(...nodes(children));
  next.normalize();
  if (element.childNodes.length === next.childNodes.length && [...element.childNodes].every((n, i) => same(n, next.childNodes[i]))) return;
  element.replaceChildren(next);
}

// same reports whether two nodes show the same. Instants count by when they are, not by what is left
// until then; elements with handlers count by their key.
function same(a, b) {
  if (a.nodeType === Node.ELEMENT_NODE && b.nodeType === Node.ELEMENT_NODE) {
    if (a.dataset.key || b.dataset.key) return a.dataset.key === b.dataset.key;
    if (a.dataset.at || b.dataset.at) return a.dataset.at === b.dataset.at && a.dataset.form === b.dataset.form;
    if (!a.cloneNode(false).isEqualNode(b.cloneNode(false)) || a.childNodes.length !== b.childNodes.length) return false;
    return [...a.childNodes].every((n, i) => same(n, b.childNodes[i]));
  }
  return a.isEqualNode(b);
}

// link leads to a place within the page.
export function link(place, ...children) {
  return h('a', { href: place }, ...children);
}

// place is the address of a view within the page.
export function place(...names) {
  return '#/' + names.map(encodeURIComponent).join('/');
}

// query is what follows the names in the address: how a list is filtered and sorted.
export const query = () => /\?.*/.exec(location.hash)?.[0] ?? '';

// badge is a short state; kind is good, warn, bad or empty.
export function badge(text, kind) {
  return h('span', { class: 'badge ' + (kind ?? '') }, text);
}

// pairs is a list of names and values; pairs without a value are left out.
export function pairs(list) {
  return h('dl', { class: 'pairs' }, list.filter(([, value]) => value !== undefined && value !== null && value !== '')
    .map(([name, value]) => h('div', null, h('dt', null, name), h('dd', null, value))));
}

// button is a button with a handler. Its key keeps it from being replaced by an equal one.
export function button(text, handler, attributes) {
  return h('button', { type: 'button', data: { key: text }, ...attributes, on: { click: handler } }, text);
}
