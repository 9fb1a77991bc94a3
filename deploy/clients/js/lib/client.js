'use strict'
const { randomUUID } = require('node:crypto')
const { setMaxListeners } = require('node:events')
const { Hold, Holder } = require('./hold')
const { ClosedError, LockLostError, RefusedError, SessionEndedError, UnknownOutcomeError, refusal } = require('./errors')

const EXCHANGE = 'amq.quorate.command'
const REPLIES = 'amq.rabbitmq.reply-to'
const MAX_TAGS = 256 // delivery tags of one command

/**
 * When a message is ready: after `delay` milliseconds, or at `at`.
 * @typedef {{delay?: number, at?: Date}} When
 */

/**
 * Where scheduled messages wait: a queue, or a delayed exchange.
 * @typedef {{queue: string} | {exchange: string}} Place
 */

function when ({ delay, at } = {}, name = 'x-delay') {
  if (delay !== undefined && at !== undefined) throw new TypeError('either delay or at')
  if (delay !== undefined) return { [name]: Math.trunc(delay) }
  return at === undefined ? {} : { 'x-opt-delivery-time': at.getTime() }
}

function place ({ queue, exchange }, id) {
  if ((queue === undefined) === (exchange === undefined)) throw new TypeError('either queue or exchange')
  return { ...(queue === undefined ? { 'x-exchange': exchange } : { 'x-queue': queue }), 'x-schedule-id': id }
}

/**
 * Commands on a channel of amqplib. The channel and its connection stay the program's: it opens them, and opens
 * others when they are lost. Nothing is sent twice but the renewal of a lock, which is harmless.
 *
 * All durations are milliseconds. Each call takes at most as long as the client's timeout.
 */
class Client {
  #channel
  #number = 0
  #answers = new Map()
  #returns = new Map()
  #closed = new AbortController()

  /** @private Use {@link Client.on}. */
  constructor (channel, timeout) {
    this.#channel = channel
    this.timeout = timeout
    setMaxListeners(0, this.closed) // as many as there are calls
    let why
    channel.on('error', (e) => { why = e })
    channel.on('close', () => this.#closed.abort(new ClosedError('the channel is closed' + (why ? ': ' + why.message : ''), { cause: why })))
    channel.on('return', (m) => {
      if (this.#returns.has(m.properties.messageId)) this.#returns.set(m.properties.messageId, m.fields)
    })
  }

  /**
   * Makes a client of a channel, and has the channel consume direct replies: it has at most one client, and
   * no other consumer of these. Commands are about what was delivered on the same channel, so this is the one that
   * consumes. Publish on another one: `waitForConfirms` counts a refused command as a message that was nacked.
   *
   * @param {import('amqplib').ConfirmChannel} channel of `connection.createConfirmChannel()`
   * @param {{timeout?: number}} [options] the broker gives a command up after five seconds without a leader
   * @returns {Promise<Client>}
   */
  static async on (channel, { timeout = 10000 } = {}) {
    const client = new Client(channel, timeout)
    await channel.consume(REPLIES, (m) => {
      const answered = m && client.#answers.get(m.properties.correlationId)
      if (answered) answered(JSON.parse(m.content))
    }, { noAck: true })
    return client
  }

  /** Aborted when the channel is closed; its reason is the {@link ClosedError}. @type {AbortSignal} */
  get closed () { return this.#closed.signal }

  /** Publishes, and waits for what settles the promise. */
  #wait (what, timeout, start) {
    return new Promise((resolve, reject) => {
      this.closed.throwIfAborted()
      const unknown = (why) => reject(new UnknownOutcomeError(`${what}: ${why.message ?? why}`, { cause: why }))
      const timer = setTimeout(unknown, Math.min(timeout, this.timeout), 'no answer in time')
      const closed = () => unknown(this.closed.reason)
      this.closed.addEventListener('abort', closed)
      const over = () => {
        clearTimeout(timer)
        this.closed.removeEventListener('abort', closed)
      }
      try {
        start((value) => { over(); resolve(value) })
      } catch (e) {
        over()
        reject(e.name === 'IllegalOperationError' ? new ClosedError(`${what}: ${e.message}`, { cause: e }) : e)
      }
    })
  }

  /**
   * Sends a command and returns the results of its answer. The methods below do so for each verb.
   * @param {string} verb
   * @param {object} headers
   * @param {Buffer} [body]
   * @returns {Promise<object[]>}
   */
  async command (verb, headers, body = Buffer.alloc(0), timeout = this.timeout) {
    const correlationId = String(++this.#number)
    try {
      const answer = await this.#wait(verb, timeout, (resolve) => {
        this.#answers.set(correlationId, resolve)
        this.#channel.publish(EXCHANGE, verb, body, { replyTo: REPLIES, correlationId, headers })
      })
      if (!answer.ok) throw refusal(verb, answer)
      return answer.results ?? []
    } finally {
      this.#answers.delete(correlationId)
    }
  }

  /**
   * Publishes a message that waits in its queues until a time, and returns when a majority of nodes has it. A message
   * without an id is given one. One that is routed to no queue is a {@link RefusedError} with code 312.
   *
   * @param {string} exchange
   * @param {string} key
   * @param {Buffer} content
   * @param {When & {id?: string, conflict?: 'replace'|'reject'|'ignore'}} schedule `id` is a name, unique in the
   * queue, to cancel it by; `conflict` says what happens if another message has it
   * @param {import('amqplib').Options.Publish} [options]
   */
  async schedule (exchange, key, content, schedule, options = {}) {
    const headers = { ...options.headers, ...when(schedule, 'x-opt-delivery-delay') }
    if (schedule.id !== undefined) headers['x-schedule-id'] = schedule.id
    if (schedule.conflict !== undefined) headers['x-schedule-conflict'] = schedule.conflict
    const messageId = options.messageId ?? randomUUID()
    this.#returns.set(messageId, null)
    try {
      const nacked = await this.#wait('schedule', this.timeout, (resolve) => {
        this.#channel.publish(exchange, key, content, { ...options, headers, messageId, mandatory: true }, (e) => {
          if (!e || e.message === 'message nacked') resolve(e)
        })
      })
      const returned = this.#returns.get(messageId)
      if (returned) throw new RefusedError('schedule', returned.replyCode, returned.replyText)
      if (nacked) throw new RefusedError('schedule', 0, 'nacked')
    } finally {
      this.#returns.delete(messageId)
    }
  }

  /** Removes a scheduled message, which is never delivered then. @param {Place} from @param {string} id */
  async cancel (from, id) { await this.command('schedule.cancel', place(from, id)) }

  /** Gives a scheduled message another time. @param {Place} at @param {string} id @param {When} time */
  async reschedule (at, id, time) { await this.command('schedule.update', { ...place(at, id), ...when(time) }) }

  /** Makes a scheduled message due now. @param {Place} at @param {string} id */
  async fire (at, id) { await this.command('schedule.fire', place(at, id)) }

  /**
   * Stops handing out the messages of a queue, for a time or until it is resumed. Its publishers go on.
   * @param {string} queue
   * @param {{reason?: string, duration?: number}} [options]
   */
  async pause (queue, { reason = '', duration } = {}) {
    const headers = { 'x-queue': queue, 'x-reason': reason }
    if (duration !== undefined) headers['x-duration'] = Math.trunc(duration)
    await this.command('queue.pause', headers)
  }

  /** Ends a pause. @param {string} queue */
  async resume (queue) { await this.command('queue.resume', { 'x-queue': queue }) }

  /**
   * Has deferred messages delivered to a consumer of the channel, by the tokens under which they were deferred.
   * @param {string} queue
   * @param {string} consumerTag
   * @param {...string} tokens
   */
  async receiveDeferred (queue, consumerTag, ...tokens) {
    await this.command('message.receive-deferred', { 'x-queue': queue, 'x-consumer-tag': consumerTag, 'x-deferral-tokens': tokens })
  }

  /** The calls of a delivery of the channel. @param {import('amqplib').ConsumeMessage} delivery @returns {Message} */
  message (delivery) { return new Message(this, { 'x-delivery-tag': delivery.fields.deliveryTag }, delivery) }

  /**
   * The calls of a delivery, of any channel, by its lock token: the header x-lock-token that a consumer with
   * x-delivery-info gets. It needs the permission to read the queue.
   * @param {string} token
   * @returns {Message}
   */
  messageWithToken (token) { return new Message(this, { 'x-lock-token': token }, null) }

  /** The calls of a group that a consumer of the program's own holds. @returns {Group} */
  group (queue, consumerTag, id) { return new Group(this, queue, consumerTag, id) }

  /**
   * Waits for a group that nobody holds, that with an id or the next one, and for its first message.
   * @param {string} queue
   * @param {{id?: string, arguments?: object, timeout?: number}} [options] `arguments` are the consumer's:
   * x-lock-duration and others. The prefetch is the channel's.
   * @returns {Promise<Session>}
   */
  async accept (queue, { id, arguments: all = {}, timeout = this.timeout } = {}) {
    const inbox = new Inbox(this.closed)
    const args = id === undefined ? all : { ...all, 'x-group-id': id }
    const { consumerTag } = await this.#channel.consume(queue, (m) => inbox.add(m), { arguments: args })
    const session = new Session(this, queue, consumerTag, inbox, () => this.#channel.cancel(consumerTag))
    try {
      await session.begin(timeout)
    } catch (e) {
      if (!this.closed.aborted) await session.close()
      throw e
    }
    return session
  }
}

/** What a consumer has got. */
class Inbox {
  #items = []
  #wake = () => {}
  #why = null
  #done = new AbortController()

  constructor (closed) {
    closed.addEventListener('abort', () => this.#end(closed.reason), { signal: this.#done.signal })
  }

  /** null: the broker has cancelled the consumer. */
  add (m) {
    if (m === null) return this.#end(new SessionEndedError('the broker has cancelled the consumer'))
    this.#items.push(m)
    this.#wake()
  }

  #end (why) { this.#why ??= why; this.#wake() }

  /** Ends it, and returns what is left. */
  end () {
    this.#done.abort()
    this.#end(new SessionEndedError('the session is closed'))
    return this.#items.splice(0)
  }

  /** The next one; undefined: there was none in time. */
  async next (timeout) {
    if (!this.#items.length && !this.#why) {
      await new Promise((resolve) => {
        const timer = timeout === undefined ? undefined : setTimeout(resolve, timeout)
        this.#wake = () => { clearTimeout(timer); resolve() }
      })
    }
    if (!this.#items.length && this.#why) throw this.#why
    return this.#items.shift()
  }
}

/** A delivery, whose settlements say whether they took effect. */
class Message extends Holder {
  #client
  #which

  /** @private */
  constructor (client, which, delivery) {
    super()
    this.#client = client
    this.#which = which
    /** What amqplib has delivered; null for a message that is named by a token. */
    this.delivery = delivery
    /** @private */
    this.settled = () => {}
  }

  /** The body. @type {Buffer} */
  get content () { return this.delivery.content }

  /** Makes the lock begin anew, for a time or for as long as at first, and returns how long it lasts. 0: there is none. */
  async renew (lock, timeout) {
    const headers = lock === undefined ? {} : { 'x-lock-duration': Math.trunc(lock) }
    const [result] = await this.#client.command('lock.renew', { ...headers, ...this.#which }, undefined, timeout)
    return result?.remaining_ms ?? 0
  }

  /**
   * Renews the lock, now and in the background, until the message is settled by a call below, or the hold ended.
   * @param {number} [lock]
   * @returns {Promise<Hold>}
   */
  hold (lock) { return this.beginHold('lock.renew', this.#client.closed, (timeout) => this.renew(lock, timeout)) }

  /** Removes the message. */
  ack () { return this.#settle('message.settle', { 'x-outcome': 'ack' }) }

  /** Returns the message to its place, which is no failure. */
  requeue () { return this.#settle('message.settle', { 'x-outcome': 'requeue' }) }

  /** Makes the message a dead letter if its queue has a dead-letter exchange, and drops it otherwise. */
  reject () { return this.#settle('message.settle', { 'x-outcome': 'reject' }) }

  /** As reject, with headers of the dead letter that say why. @param {string} reason @param {string} [description] */
  deadLetter (reason, description = '') {
    return this.#settle('message.settle', { 'x-outcome': 'dead-letter', 'x-reason': reason, 'x-description': description })
  }

  /**
   * Returns the message, to be ready again at a time. `failed`: this counts for the delivery limit.
   * @param {When & {failed?: boolean}} time
   */
  async retry (time) { return this.#settle('message.retry', { ...when(time), 'x-delivery-failed': time.failed ?? true }) }

  /**
   * Puts the message aside under a token that is unique in its queue, until somebody asks for it by that token or,
   * with a time, it returns by itself.
   * @param {string} token
   * @param {When} [time]
   */
  async defer (token, time) { return this.#settle('message.defer', { ...when(time), 'x-deferral-token': token }) }

  async #settle (verb, headers) {
    await this.giveUp(() => this.#client.command(verb, { ...headers, ...this.#which }), this.#client.timeout)
    this.settled()
  }
}

/** A group of messages that a consumer of the channel holds. */
class Group extends Holder {
  #client

  /** @private */
  constructor (client, queue, consumerTag, id) {
    super()
    this.#client = client
    Object.assign(this, { queue, consumerTag, id })
  }

  #command (verb, body, timeout) {
    return this.#client.command(verb, { 'x-queue': this.queue, 'x-group-id': this.id, 'x-consumer-tag': this.consumerTag }, body, timeout)
  }

  /** Makes the lock of the group begin anew, and returns how long it lasts. 0: it has none. */
  async renew (timeout) {
    const [result] = await this.#command('group.renew', undefined, timeout)
    return result?.remaining_ms ?? 0
  }

  /** Renews the lock, now and in the background, until the group is released. @returns {Promise<Hold>} */
  hold () { return this.beginHold('group.renew', this.#client.closed, (timeout) => this.renew(timeout)) }

  /** Gives the group up. What is not settled returns, which is no failure; the consumer may be given it again. */
  async release () { await this.giveUp(() => this.#command('group.release'), this.#client.timeout) }

  /** The state of the group; empty: there is none. @returns {Promise<Buffer>} */
  async state () {
    const [result] = await this.#command('group.get-state')
    return Buffer.from(result?.state ?? '', 'base64')
  }

  /** Keeps bytes with the group for whoever holds it next; none: the state is removed. @param {Buffer} state */
  async setState (state) { await this.#command('group.set-state', state) }
}

/** A group with its messages in order, received by a consumer that takes no other. `for await` goes through them. */
class Session extends Group {
  #client
  #inbox
  #cancel
  #first
  #unsettled = new Set()

  /** @private */
  constructor (client, queue, consumerTag, inbox, cancel) {
    super(client, queue, consumerTag, '')
    this.#client = client
    this.#inbox = inbox
    this.#cancel = cancel
  }

  /** @private */
  async begin (timeout) {
    this.#first = await this.#next(timeout)
    if (!this.#first) throw new SessionEndedError('no message of a free group in time')
    this.id = groupOf(this.#first)
    if (this.id === '') throw new SessionEndedError('the next message is of no group')
  }

  async #next (timeout) {
    const m = await this.#inbox.next(timeout)
    if (m) this.#unsettled.add(m.fields.deliveryTag)
    return m
  }

  /**
   * Waits for the next message of the group; null: there was none in time. Throws {@link SessionEndedError} when the
   * group has been given up.
   * @param {number} [timeout]
   * @returns {Promise<Message|null>}
   */
  async receive (timeout) {
    const m = this.#first ?? await this.#next(timeout)
    this.#first = undefined
    if (!m) return null
    if (groupOf(m) !== this.id) throw new SessionEndedError(`group ${this.id} has been given up`) // it returns when the session is closed
    const message = this.#client.message(m)
    message.settled = () => this.#unsettled.delete(m.fields.deliveryTag)
    return message
  }

  async * [Symbol.asyncIterator] () {
    try {
      for (;;) yield await this.receive()
    } catch (e) {
      if (!(e instanceof SessionEndedError)) throw e
    }
  }

  /** Cancels the consumer and returns what it has not settled, which is no failure. The group is free then. */
  async close () {
    this.endHold()
    await this.#cancel()
    for (const m of this.#inbox.end()) this.#unsettled.add(m.fields.deliveryTag)
    const tags = [...this.#unsettled]
    while (tags.length) {
      const some = tags.splice(0, MAX_TAGS)
      await this.#client.command('message.settle', { 'x-delivery-tags': some, 'x-outcome': 'requeue' }).catch((e) => {
        if (!(e instanceof LockLostError)) throw e // lost: so it has returned already
      })
      some.forEach((tag) => this.#unsettled.delete(tag))
    }
  }
}

function groupOf (m) { return String(m.properties.headers?.['x-group-id'] ?? m.properties.appId ?? '') }

module.exports = { Client, Message, Group, Session, Hold }
