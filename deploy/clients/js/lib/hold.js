'use strict'
const { setTimeout: passed } = require('node:timers/promises')
const { LockLostError, UnknownOutcomeError, ClosedError } = require('./errors')

const MIN_RENEWAL = 100 // milliseconds between two renewals, at least

/** A lock that is renewed in the background until it is ended, or lost. */
class Hold {
  #controller = new AbortController()
  #stop = new AbortController()

  /** Aborted when the lock is lost or the channel closed; its reason is the error. @type {AbortSignal} */
  get signal () { return this.#controller.signal }

  /** Whether the lock is being renewed. @type {boolean} */
  get active () { return !this.#stop.signal.aborted }

  /** Ends the renewals; with an error: the lock is lost. */
  end (why) {
    if (this.#stop.signal.aborted) return
    this.#stop.abort()
    if (why) this.#controller.abort(why)
  }

  /** Renews now, and goes on in the background. */
  async begin (verb, holder, closed, renew) {
    const began = performance.now()
    const left = await renew()
    if (!left) throw new RangeError('it has no lock')
    closed.addEventListener('abort', () => this.end(closed.reason), { signal: this.#stop.signal })
    if (closed.aborted) this.end(closed.reason)
    this.#keep(verb, holder, renew, began + left)
    return this
  }

  async #keep (verb, holder, renew, ends) {
    for (;;) {
      const left = Math.max(ends - performance.now(), 0)
      await passed(Math.min(left, Math.max(left / 2, MIN_RENEWAL)), null, { signal: this.#stop.signal }).catch(() => {})
      if (this.#stop.signal.aborted) return
      try {
        const began = performance.now()
        const more = await holder.inTurn(() => this.#stop.signal.aborted ? 0 : renew(Math.max(ends - performance.now(), 0)), ends - began)
        if (this.#stop.signal.aborted) return
        ends = began + more
      } catch (e) {
        if (e instanceof UnknownOutcomeError && performance.now() < ends) continue
        if (e instanceof LockLostError || e instanceof ClosedError) return this.end(e)
        return this.end(Object.assign(new LockLostError(verb, e.code ?? 0, 'it was not renewed in time: ' + e.message), { cause: e }))
      }
    }
  }
}

/** What has a lock: one command about it at a time. */
class Holder {
  #turn = Promise.resolve()
  #hold = null

  /** @protected */
  async beginHold (verb, closed, renew) {
    this.endHold()
    this.#hold = new Hold()
    return this.#hold.begin(verb, this, closed, renew)
  }

  /** @protected */
  endHold (why) { this.#hold?.end(why) }

  /** @protected Sends what gives the lock up. If that fails, the renewals go on. */
  async giveUp (send, timeout) {
    try {
      await this.inTurn(send, timeout)
      this.endHold()
    } catch (e) {
      if (e instanceof LockLostError) this.endHold(e)
      throw e
    }
  }

  /** @protected Sends after what was sent before is answered, or not at all. */
  async inTurn (send, timeout) {
    let late = false
    let timer
    const before = this.#turn
    const mine = before.then(() => {
      clearTimeout(timer)
      if (!late) return send()
    })
    this.#turn = mine.catch(() => {})
    const waited = new Promise((resolve, reject) => {
      timer = setTimeout(() => {
        late = true
        reject(new UnknownOutcomeError('not sent: the command before has not been answered'))
      }, timeout)
    })
    return Promise.race([mine, waited])
  }
}

module.exports = { Hold, Holder }
