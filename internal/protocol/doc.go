// Package protocol turns the model into the messages of the node-local API, and the messages
// into the model. Servers split changes into parts of bounded size with [Parts]; clients put them together
// with a [Batch].
package protocol
