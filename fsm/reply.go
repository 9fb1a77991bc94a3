package fsm

import "strings"

// ReplyQueue is the name under which a channel consumes the replies to what it
// publishes, and the reply-to property that asks for them. It is no queue.
const ReplyQueue = "amq.rabbitmq.reply-to"

// replyPrefix begins the routing keys of replies.
const replyPrefix = ReplyQueue + "."

// ReplyName is the routing key that leads to a channel.
func ReplyName(suffix string) string { return replyPrefix + suffix }

// ReplySuffix is the inverse of ReplyName; ok false: it is another name.
func ReplySuffix(name string) (suffix string, ok bool) { return strings.CutPrefix(name, replyPrefix) }
