// Search without a server. A page that was opened as a file may start no worker, so that the script of one runs in a hidden
// frame here. (The name is what the plugin `offline` looks for: it would fetch such a script from the network.)
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.srcdoc = "<!doctype html><script></script>"
      this.ready = new Promise((resolve) => {
        this.frame.onload = () => {
          const inside = this.frame.contentWindow
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
          const script = inside.document.createElement("script")
          script.src = url
          script.onload = () => resolve(inside)
          inside.document.head.append(script)
        }
      })
      document.body.append(this.frame)
    }

    async postMessage(data) {
      const inside = await this.ready
      inside.dispatchEvent(new inside.MessageEvent("message", { data }))
    }
  }
}
