package entity

import "strings"

// GroupAnnotation is the annotation, and the header of AMQP 0-9-1, that names the group of a message. A session is the group
// that GroupOf names.
const GroupAnnotation = "x-group-id"

// noID begins the group of a session whose id is empty, or begins with it: a group has a name.
const noID = "\x00"

// GroupOf returns the group of messages that is a session.
func GroupOf(id string) string {
	if id == "" || strings.HasPrefix(id, noID) {
		return noID + id
	}
	return id
}

// SessionOf is the inverse of GroupOf.
func SessionOf(group string) string { return strings.TrimPrefix(group, noID) }
