// Drives nsqjs; the lines are those of lines_kit.py.
'use strict'

const readline = require('readline')
const {Reader, Writer} = require('nsqjs')

const clients = new Map()
const messages = new Map()

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`)
const encoded = (body) => Buffer.from(body, 'latin1')

function features({tls, ...others}) {
  return tls ? {...others, tls: true, ca: Buffer.from(tls)} : others
}

function answered(call) {
  return new Promise((resolve, reject) => call((error) => (error ? reject(error) : resolve(null))))
}

function heldMessage(name, id) {
  return messages.get(`${name}/${id}`)
}

const driver = {
  produce({name, port, ...more}) {
    const writer = new Writer('127.0.0.1', port, features(more))
    clients.set(name, writer)
    writer.on('error', () => {})
    // It does not come back by itself; its users do this.
    writer.on('closed', () => {
      if (clients.get(name) === writer) setTimeout(() => writer.connect(), 200)
    })
    return new Promise((resolve) => {
      writer.once('ready', () => resolve(null))
      writer.connect()
    })
  },

  publish({name, topic, body}) {
    return answered((done) => clients.get(name).publish(topic, encoded(body), done))
  },

  publish_batch({name, topic, bodies}) {
    return answered((done) => clients.get(name).publish(topic, bodies.map(encoded), done))
  },

  defer({name, topic, body, ms}) {
    return answered((done) => clients.get(name).deferPublish(topic, [encoded(body)], ms, done))
  },

  consume({name, port, topic, channel, in_flight, finish, timeout_ms, ...more}) {
    const options = {
      nsqdTCPAddresses: [`127.0.0.1:${port}`],
      maxInFlight: in_flight,
      lookupdPollInterval: 1,
      ...features(more),
    }
    if (timeout_ms) options.messageTimeout = timeout_ms
    const reader = new Reader(topic, channel, options)
    clients.set(name, reader)
    reader.on('error', () => {})
    reader.on('message', (message) => {
      const id = message.id.toString()
      messages.set(`${name}/${id}`, message)
      if (finish) message.finish()
      const body = message.body.toString('latin1')
      say({consumer: name, id, attempts: message.attempts, body})
    })
    reader.connect()
    return null
  },

  finish({name, message}) {
    heldMessage(name, message).finish()
    return null
  },

  requeue({name, message, ms}) {
    heldMessage(name, message).requeue(ms, false)
    return null
  },

  touch({name, message}) {
    heldMessage(name, message).touch()
    return null
  },

  leave({name}) {
    const client = clients.get(name)
    clients.delete(name)
    client.close()
    return null
  },
}

async function carryOut(request) {
  try {
    say({number: request.number, value: await driver[request.do](request.with)})
  } catch (error) {
    say({number: request.number, error: String(error)})
  }
}

const requests = readline.createInterface({input: process.stdin})
requests.on('line', (line) => carryOut(JSON.parse(line)))
requests.on('close', () => process.exit(0))
