'use strict'
const { refusal, ...errors } = require('./lib/errors')

module.exports = { ...errors, ...require('./lib/client') }
