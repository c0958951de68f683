// Plugin of OpenCode: asks the model in its place, and writes a line of JSON to standard output for what it would not
// tell. `gym.answer`: an answer's id and usage, and its calls as the model wrote them. `gym.failure`: why a call failed.
// `gym.unready`: why a tool server is of no use; `gym.left_out`: the same of one that is not required. `gym.idle`: a
// session came to rest.
//
// Left to itself, OpenCode asks six times where the model fails, over more than a minute, and without end where an
// answer breaks off. What it hears from here instead is an error that it does not try again.

const GAVE_UP = "gym gave up"
const TRIED_AGAIN = "network error: " // OpenCode tries again where it reads these words

export const Watch = async ({ client }, { retries, silence_ms, required, optional, search }) => {
  const { HOME, PATH } = process.env
  process.env.PATH = `${PATH}:${search}`
  // Commands of the model get what OpenCode itself must not have.
  const outside = {
    PATH,
    XDG_CACHE_HOME: `${HOME}/.cache`,
    XDG_CONFIG_HOME: `${HOME}/.config`,
    XDG_DATA_HOME: `${HOME}/.local/share`,
    XDG_STATE_HOME: `${HOME}/.local/state`,
  }
  let failures = 0
  let unproven = required
  let untold = optional

  const tell = (type, fields) => process.stdout.write(JSON.stringify({ type: `gym.${type}`, ...fields }) + "\n")

  // The error that OpenCode gets for a failed call.
  const failed = (text, error = new Error(TRIED_AGAIN + text)) => {
    tell("failure", { text: text.slice(0, 4000) })
    failures += 1
    return failures > retries ? new Error(GAVE_UP) : error
  }

  const stateOf = async (name) => (await client.mcp.status()).data?.[name] ?? { status: "unknown" }

  // OpenCode gives a server up for good where a connection breaks once.
  const connectAgain = async () => {
    for (const name of unproven) {
      if ((await stateOf(name)).status !== "connected") await client.mcp.connect({ path: { name } })
    }
  }

  const proveReady = async () => {
    for (const name of unproven) {
      const { status, error } = await stateOf(name)
      if (status === "connected") continue
      tell("unready", { text: `${name}: ${error ?? status}` })
      throw new Error(GAVE_UP)
    }
    unproven = []
  }

  const tellOfOptional = async () => {
    const names = untold
    untold = []
    for (const name of names) {
      const { status, error } = await stateOf(name)
      if (status !== "connected") tell("left_out", { text: `${name} is left out: ${error ?? status}` })
    }
  }

  const ask = async (url, init) => {
    if (failures > retries) throw new Error(GAVE_UP)
    await tellOfOptional()
    if (unproven.length > 0) await proveReady()
    const patience = new Patience(silence_ms)
    let response
    try {
      response = await fetch(url, { ...init, signal: AbortSignal.any([init.signal, patience.signal].filter(Boolean)) })
    } catch (error) {
      patience.end()
      if (init.signal?.aborted) throw error
      throw failed(`${error.code ?? error.name}: ${error.message}`, patience.signal.aborted ? undefined : error)
    }
    if (response.ok) return new Response(passedOn(response.body.getReader(), init, patience), response)
    const text = await response.text()
    patience.end()
    const { status } = response
    if ([408, 409, 429].includes(status) || status >= 500) {
      const error = failed(`HTTP ${status}: ${text}`)
      if (failures > retries) throw error
    }
    return new Response(text, response)
  }

  const passedOn = (reader, init, patience) => {
    const answer = new Answer(new Headers(init.headers).get("x-session-id"))
    const pull = async (controller) => {
      try {
        patience.wait()
        const { value, done } = await reader.read()
        if (done) patience.end()
        else answer.take(value)
        if (answer.error) throw failed(JSON.stringify(answer.error))
        if (!done) return controller.enqueue(value)
        if (!answer.told.finish) throw failed("the stream ended without a finish_reason")
        failures = 0
        tell("answer", answer.told)
        controller.close()
      } catch (error) {
        const ran_out = patience.signal.aborted && error === patience.signal.reason
        patience.end()
        controller.error(ran_out ? failed(error.message) : error)
      }
    }
    const cancel = (reason) => {
      patience.end()
      return reader.cancel(reason)
    }
    return new ReadableStream({ pull, cancel })
  }

  return {
    auth: { provider: "gym", methods: [], loader: async () => ({ fetch: ask }) },
    "chat.message": connectAgain, // comes before the tools for the model are listed
    "shell.env": async (_, output) => void Object.assign(output.env, outside),
    event: async ({ event: { type, properties } }) => {
      if (type === "session.status" && properties.status.type === "idle") tell("idle", { session: properties.sessionID })
    },
  }
}

// Ends a call that is silent for too long.
class Patience {
  #controller = new AbortController()
  #milliseconds
  #timer

  constructor(milliseconds) {
    this.#milliseconds = milliseconds
    this.wait()
  }

  get signal() {
    return this.#controller.signal
  }

  wait() {
    this.end()
    const error = new Error(`the model timed out: it was silent for ${this.#milliseconds / 1000} s`)
    this.#timer = setTimeout(() => this.#controller.abort(error), this.#milliseconds)
  }

  end() {
    clearTimeout(this.#timer)
  }
}

// What the chunks of a streamed answer say together.
class Answer {
  #decoder = new TextDecoder()
  #rest = ""

  constructor(session) {
    this.told = { session, id: null, usage: null, finish: null, calls: [] }
    this.error = null
  }

  take(bytes) {
    const lines = (this.#rest + this.#decoder.decode(bytes, { stream: true })).split("\n")
    this.#rest = lines.pop()
    for (const line of lines) if (line.startsWith("data:")) this.#chunk(line.slice(5))
  }

  #chunk(text) {
    let chunk
    try {
      chunk = JSON.parse(text)
    } catch {
      return // the end mark; or nothing that OpenCode will not complain of itself
    }
    this.error ??= chunk.error ?? null
    this.told.id ??= chunk.id ?? null
    this.told.usage = chunk.usage ?? this.told.usage
    const { delta, finish_reason } = chunk.choices?.[0] ?? {}
    this.told.finish = finish_reason ?? this.told.finish
    for (const { index, id, function: called } of delta?.tool_calls ?? []) {
      const call = (this.told.calls[index ?? 0] ??= { id: id ?? "", name: "", arguments: "" })
      call.name += called?.name ?? ""
      call.arguments += called?.arguments ?? ""
    }
  }
}
