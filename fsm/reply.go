package fsm

import "strings"

// ReplyQueue is the name under which a channel consumes replies to its
// publishes, and the value of reply-to that requests them. It is not a queue.
const ReplyQueue = "amq.rabbitmq.reply-to"

// replyPrefix is the prefix of the routing keys of replies.
const replyPrefix = ReplyQueue + "."

// ReplyName returns the routing key that leads to a channel.
func ReplyName(suffix string) string { return replyPrefix + suffix }

// ReplySuffix is the inverse of ReplyName; ok is false for other names.
func ReplySuffix(name string) (suffix string, ok bool) { return strings.CutPrefix(name, replyPrefix) }
