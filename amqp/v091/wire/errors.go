package wire

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Error is a protocol error: the contents of connection.close or channel.close.
// Reader and the decoders themselves create no other errors.
type Error struct {
	Code uint16
	// Text is the explanation, without the name of the code. It can be longer
	// than a reply text may be; see ReplyText.
	Text string
	// ClassID and MethodID name the method at fault, 0 and 0 when none is.
	ClassID, MethodID uint16
}

// Error returns the reply text of e.
func (e *Error) Error() string { return ReplyText(e.Code, e.Text) }

// ReplyText renders "NAME - text", short enough for a reply-text field.
func ReplyText(code uint16, text string) string {
	return TruncateText(ReplyName(code) + " - " + text)
}

// maxShortstr is the longest short string in bytes.
const maxShortstr = 255

// TruncateText returns s as valid UTF-8 of at most 255 bytes. A longer text is
// cut between two runes and ends in "...".
func TruncateText(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxShortstr {
		return s
	}
	const dots = "..."
	return s[:runeBoundary(s, maxShortstr-len(dots))] + dots
}

// runeBoundary returns the last position ≤ n at which a rune of s starts.
func runeBoundary(s string, n int) int {
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return n
}

// UnexpectedFrame is the error for a frame that is not allowed in the state of
// the connection.
func UnexpectedFrame(f Frame) *Error {
	return &Error{Code: CodeUnexpectedFrame, Text: describeFrame(f.Type, f.Payload)}
}

// ExpectedMethod is the error for a header or body frame without a preceding
// method.
func ExpectedMethod() *Error {
	return &Error{Code: CodeUnexpectedFrame, Text: "expected method frame, got non method frame instead"}
}

// ExpectedHeader is the error for a frame received instead of the content
// header of the given method.
func ExpectedHeader(class, method uint16) *Error {
	return &Error{
		Code:     CodeUnexpectedFrame,
		Text:     fmt.Sprintf("expected content header for class %d, got non content header frame instead", class),
		ClassID:  class,
		MethodID: method,
	}
}

// ExpectedBody is the error for a frame received instead of the rest of the
// body of the given method.
func ExpectedBody(class, method uint16) *Error {
	return &Error{
		Code:     CodeUnexpectedFrame,
		Text:     "expected content body, got non content body frame instead",
		ClassID:  class,
		MethodID: method,
	}
}

// BodyTooLong is the error for body frames that together exceed the size the
// content header announced.
func BodyTooLong(class, method uint16) *Error {
	return &Error{
		Code:     CodeFrameError,
		Text:     "content body frame exceeds remaining content size",
		ClassID:  class,
		MethodID: method,
	}
}

// frameError is a 501 about a whole frame, for the reason what.
func frameError(typ byte, payload []byte, what string) *Error {
	return &Error{Code: CodeFrameError, Text: describeFrame(typ, payload) + ": " + what}
}

// describeFrame names a frame by its type and at most 16 octets.
func describeFrame(typ byte, payload []byte) string {
	const limit = 16
	which := "all"
	if len(payload) > limit {
		which, payload = "first 16", payload[:limit]
	}
	return fmt.Sprintf("type %d, %s octets = %s", typ, which, octets(payload))
}

// octets renders bytes the way clients of the reference broker know them:
// <<"abc">> when all are printable ASCII or a usual escape, else <<1,2,3>>.
func octets(b []byte) string {
	if len(b) == 0 {
		return "<<>>"
	}
	var s strings.Builder
	s.WriteString(`<<"`)
	for _, c := range b {
		switch at := strings.IndexByte("\"\\\b\t\n\v\f\r\x1b", c); {
		case at >= 0:
			s.WriteByte('\\')
			s.WriteByte(`"\btnvfre`[at])
		case c >= ' ' && c <= '~':
			s.WriteByte(c)
		default:
			return octetNumbers(b)
		}
	}
	s.WriteString(`">>`)
	return s.String()
}

func octetNumbers(b []byte) string {
	var s strings.Builder
	s.WriteString("<<")
	for i, c := range b {
		if i > 0 {
			s.WriteByte(',')
		}
		fmt.Fprintf(&s, "%d", c)
	}
	s.WriteString(">>")
	return s.String()
}
