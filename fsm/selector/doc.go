// Package selector reads and evaluates message selectors: JMS's conditions over the application properties of a message
// (colour = 'red'), and over its other sections by prefix (h.priority, p.subject, m.x-shape).
//
// It promises that a selector costs little, whatever it says: what is read is bounded in length and depth, and what is
// evaluated in steps. The result depends on the selector and the message alone: there is no clock, no locale and no
// random. What cannot be decided is no match. It knows no protocol: a Message is whoever can tell the values of fields.
package selector
