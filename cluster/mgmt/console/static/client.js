// Requests to the HTTP API of the node that the page is from.

import { observe } from './format.js';

// The credentials live as long as the tab, and are sent in a header only: never in an address, never
// in a cookie, which the browser would add to requests of other pages.
const stored = 'quorate.credentials';

// longest bounds a request, in ms; a node bounds its own work to 30 s.
const longest = 40000;

// Failure is an answer that is no success, or no answer (status 0).
export class Failure extends Error {
  constructor(status, error, reason) {
    super(reason);
    Object.assign(this, { status, error });
  }
}

export const loggedIn = () => sessionStorage.getItem(stored) !== null;
export const logOut = () => sessionStorage.clear();

// logIn checks credentials and keeps them. It returns the user.
export async function logIn(name, password) {
  const octets = new TextEncoder().encode(`${name}:${password}`);
  const credentials = `Basic ${btoa(String.fromCharCode(...octets))}`;
  const user = await get(path('whoami'), null, { credentials });
  sessionStorage.setItem(stored, credentials);
  return user;
}

// path is the path of a resource. Browsers take names of one or two dots for steps through folders,
// however they are written: such names are refused, since a request would reach something else.
export function path(...names) {
  for (const name of names) {
    if (name === '.' || name === '..' || name === '') throw new Failure(0, 'no_path', `a browser cannot ask for something named "${name}"; use quoratectl`);
  }
  return '/api/' + names.map(encodeURIComponent).join('/');
}

// exchangePath is path of an exchange: the default one has no name.
export const exchangePath = (vhost, name, ...rest) => path('exchanges', vhost, name === '' ? 'amq.default' : name, ...rest);

export const get = (path, query, options) => send('GET', path, { query, ...options });
export const put = (path, body, options) => send('PUT', path, { body, ...options });
export const post = (path, body, options) => send('POST', path, { body, ...options });
export const postText = (path, text) => send('POST', path, { text });
export const patch = (path, body) => send('PATCH', path, { body });
export const remove = (path, query, options) => send('DELETE', path, { query, ...options });

// check asks a health check. A check that fails is an answer.
export async function check(path, options) {
  try {
    return await get(path, null, options);
  } catch (failure) {
    if (failure.status === 503 && failure.answer?.status === 'failed') return failure.answer;
    throw failure;
  }
}

// warnings are the texts of an answer's header Warning, each a JSON string behind a code and an agent.
const warnings = (response) => [...(response.headers.get('Warning') ?? '').matchAll(/299 - ("(?:[^"\\]|\\.)*")/g)].map(([, text]) => JSON.parse(text));

// send makes a request and returns the value of the answer; undefined if it has none. What a success
// warns of is added to notes.
async function send(method, path, { query, body, text, headers, signal, notes, credentials = sessionStorage.getItem(stored) ?? '' } = {}) {
  const parameters = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== '');
  const url = parameters.length > 0 ? `${path}?${new URLSearchParams(parameters)}` : path;
  const content = text ?? (body === undefined ? undefined : JSON.stringify(body));
  const limit = AbortSignal.timeout(longest);
  let response, answer;
  try {
    response = await fetch(url, {
      method, body: content, cache: 'no-store', redirect: 'error', signal: signal ? AbortSignal.any([signal, limit]) : limit,
      headers: { Authorization: credentials, ...(content === undefined ? {} : { 'Content-Type': 'application/json' }), ...headers },
    });
    answer = await response.text();
  } catch (reason) {
    if (signal?.aborted) throw reason;
    throw new Failure(0, 'no_answer', limit.aborted ? 'The node does not answer in time.' : 'The node cannot be reached.');
  }
  observe(response.headers.get('Date'));
  let value;
  try {
    value = answer === '' ? undefined : JSON.parse(answer);
  } catch {
    throw new Failure(response.status, 'not_json', `The answer (${response.status}) is not from a node.`);
  }
  if (response.ok) {
    notes?.push(...warnings(response));
    return value;
  }
  const failure = new Failure(response.status, value?.error ?? '', value?.reason || `The node answers with ${response.status}.`);
  failure.answer = value;
  if (response.status === 401 && failure.error === 'not_authorized' && sessionStorage.getItem(stored) === credentials) dispatchEvent(new CustomEvent('quorate-logout', { detail: failure }));
  throw failure;
}
