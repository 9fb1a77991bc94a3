'use strict'

/** The base of all that this package throws. */
class QuorateError extends Error {
  get name () { return this.constructor.name }
}

/** The channel is closed. */
class ClosedError extends QuorateError {}

/** The group of a session has been given up, since nothing of it was left, or its consumer was cancelled. */
class SessionEndedError extends QuorateError {}

/**
 * It is not known whether something has been done: no answer came in time, the channel was closed before, or the
 * queue had no leader and may still do it.
 */
class UnknownOutcomeError extends QuorateError {}

/** The broker has refused a command, or nacked or returned a message; it has not been done. */
class RefusedError extends QuorateError {
  /**
   * @param {string} verb what was refused, as 'lock.renew'
   * @param {number} code 404, 405, 406 …; 0: a nack, which has none
   * @param {string} text the broker's words
   * @param {object[]} [results] what became of each object that was named; empty: refused as a whole
   */
  constructor (verb, code, text, results = []) {
    super(`${verb}: ${code} ${text}`)
    Object.assign(this, { verb, code, text, results })
  }
}

/** A delivery or a group is not the caller's any more. */
class LockLostError extends RefusedError {}

/** What an answer that is not ok means. */
function refusal (verb, { code = 0, error = '', results = [] }) {
  if (code === 406 && error.endsWith('has no leader')) return new UnknownOutcomeError(`${verb}: ${code} ${error}`)
  const renews = verb.endsWith('.renew')
  const settles = verb.startsWith('message.') && verb !== 'message.receive-deferred'
  const lost = (code === 404 && (renews || settles)) || (code === 405 && renews)
  return new (lost ? LockLostError : RefusedError)(verb, code, error, results)
}

module.exports = { QuorateError, ClosedError, SessionEndedError, UnknownOutcomeError, RefusedError, LockLostError, refusal }
