// Browsers start no workers in pages opened from disk, and the search is one. There it runs in a
// hidden frame of the page instead, with the same messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.scope = frame.contentWindow
      this.scope.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        this.onmessage?.(event)
      }
      // Scripts load one after the other, which importScripts would have waited for.
      let loading = Promise.resolve()
      const load = source => new Promise((resolve, reject) => {
        const script = frame.contentDocument.createElement("script")
        script.src = new URL(source, location.href)
        script.onload = resolve
        script.onerror = () => reject(new Error(`${source} cannot be loaded`))
        frame.contentDocument.body.append(script)
      })
      this.scope.importScripts = (...sources) => {
        for (const source of sources) loading = loading.then(() => load(source))
        return loading
      }
      load(url).then(() => {
        const waiting = this.waiting
        this.waiting = null
        waiting.forEach(data => this.postMessage(data))
      })
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data }))
    }

    terminate() {
      this.scope.frameElement.remove()
    }
  }
}
