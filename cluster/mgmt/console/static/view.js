// What every page is made of: a view with a heading, parts that are read again and again, notices,
// and dialogs.

import { Failure } from './client.js';
import { button, fill, h } from './dom.js';

// interval is how often a page is read again, in ms: as often as a node takes samples.
const interval = 5000;

// View is one page while it is shown.
export class View {
  #ended = new AbortController();
  #refreshes = [];
  #first;

  constructor(main, user) {
    Object.assign(this, { main, user });
    this.notices = h('div', { class: 'notices', role: 'status', 'aria-live': 'polite' });
    this.signal = this.#ended.signal;
    document.addEventListener('visibilitychange', () => this.refresh(), { signal: this.signal });
  }

  // show puts the page on the screen, and the focus on its heading if it is not the first one. A page about
  // one object sets absent before: what is said if a node does not find it.
  show(title, ...parts) {
    this.heading = h('h1', { tabindex: '-1' }, title);
    document.title = `${title} – quorate`;
    this.main.replaceChildren(this.heading, this.notices, ...parts.filter(Boolean));
  }

  // may reports whether the user has one of the tags, or is an administrator.
  may(...tags) {
    return this.user.tags.some((t) => t === 'administrator' || tags.includes(t));
  }

  // every calls read now and again until the view ends. If it fails, what is shown stays, with a
  // notice.
  every(read, ms = interval) {
    const notice = h('p', { class: 'notice bad', role: 'alert' });
    let timer, running, again;
    const run = async () => {
      if (running) {
        again = true;
        return;
      }
      running = true;
      clearTimeout(timer);
      try {
        await read();
        notice.remove();
      } catch (failure) {
        if (this.signal.aborted) return;
        if (failure.status === 404 && this.absent) return this.#gone();
        fill(notice, failure instanceof Failure ? failure.message : `The console has failed: ${failure}`);
        if (!notice.isConnected) this.notices.append(notice);
        if (!(failure instanceof Failure)) console.error(failure);
      } finally {
        running = false;
      }
      if (this.signal.aborted) return;
      if (again) {
        again = false;
        run();
      } else {
        timer = setTimeout(() => (document.hidden ? undefined : run()), ms);
      }
    };
    this.signal.addEventListener('abort', () => clearTimeout(timer));
    this.#refreshes.push(run);
    const began = run();
    this.#first ??= began;
  }

  // #gone says once that what the page is about is not there, in the place of all that is about it.
  #gone() {
    this.end();
    this.main.replaceChildren(this.heading, h('p', { class: 'notice bad', role: 'alert' }, this.absent));
  }

  // settled resolves once the page has read the first of its parts, or could not: what matters less
  // is asked for after that.
  async settled() {
    await undefined; // the page may be about to begin
    await this.#first;
  }

  // refresh reads all parts again, unless nobody can see them.
  refresh() {
    if (!document.hidden && !this.signal.aborted) for (const run of this.#refreshes) run();
  }

  // act does something that changes the cluster, and says how it went.
  async act(doing, done) {
    try {
      const value = await doing();
      this.say(typeof done === 'function' ? done(value) : done, 'good');
      return true;
    } catch (failure) {
      this.say(failure.message, 'bad');
      if (!(failure instanceof Failure)) console.error(failure);
      return false;
    } finally {
      this.refresh();
    }
  }

  // say shows a notice until it is closed, or the view ends.
  say(text, kind) {
    const notice = h('p', { class: `notice ${kind ?? ''}`, role: kind === 'bad' ? 'alert' : undefined }, h('span', null, text),
      button('Close', () => notice.remove(), { class: 'plain', 'aria-label': 'Close this notice' }));
    this.notices.replaceChildren(...[...this.notices.children].filter((n) => n.classList.contains('bad') && !n.querySelector('button')), notice);
  }

  end() {
    this.#ended.abort();
  }
}

// confirm asks before something that cannot be undone.
export function confirm(question, yes, detail) {
  return new Promise((resolve) => {
    const answer = dialog(question, [detail && h('p', null, detail)], yes, () => true, { danger: true });
    answer.then((value) => resolve(value === true));
  });
}

// dialog shows a form in a dialog. read turns it into a value, or throws what is wrong. The promise is
// fulfilled with the value, or with undefined if the dialog is closed.
export function dialog(title, content, yes, read, options) {
  return new Promise((resolve) => {
    let value;
    const problem = h('p', { class: 'notice bad', role: 'alert' });
    problem.hidden = true;
    const form = h('form', { method: 'dialog' }, h('h2', null, title), content, problem, h('div', { class: 'buttons' },
      button('Cancel', () => box.close()), h('button', { type: 'submit', class: options?.danger ? 'danger' : 'primary' }, yes)));
    const box = h('dialog', { 'aria-label': title, class: options?.wide ? 'wide' : undefined }, form);
    form.addEventListener('submit', async (event) => {
      event.preventDefault();
      try {
        value = await read(form.elements);
        box.close();
      } catch (failure) {
        problem.hidden = false;
        fill(problem, failure.message);
      }
    });
    box.addEventListener('close', () => {
      box.remove();
      resolve(value);
    });
    document.body.append(box);
    addEventListener('hashchange', () => box.close(), { once: true });
    box.showModal();
  });
}

// field is a labelled control of a form.
export function field(label, control, hint) {
  return h('label', { class: 'field' }, h('span', null, label), control, hint && h('small', null, hint));
}

export const input = (name, attributes) => h('input', { name, type: 'text', autocomplete: 'off', spellcheck: 'false', ...attributes });

export const area = (name, attributes, text) => {
  const e = h('textarea', { name, rows: 4, spellcheck: 'false', ...attributes });
  e.value = text ?? '';
  return e;
};

export function select(name, options, chosen) {
  return h('select', { name }, options.map((o) => {
    const [value, label] = Array.isArray(o) ? o : [o, o];
    return h('option', { value, selected: value === chosen }, label);
  }));
}

// object reads a JSON object that was typed in; an empty text is an empty one.
export function object(text, what) {
  if (text.trim() === '') return {};
  let value;
  try {
    value = JSON.parse(text);
  } catch (problem) {
    throw new Error(`${what} is not JSON: ${problem.message}`);
  }
  if (value === null || typeof value !== 'object' || Array.isArray(value)) throw new Error(`${what} is not a JSON object, such as {"x-message-ttl": 60000}`);
  return value;
}

// section is a part of a page under a heading.
export function section(title, ...parts) {
  return h('section', { 'aria-label': title }, h('h2', null, title), ...parts);
}
