package wire

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTruncateText(t *testing.T) {
	long := strings.Repeat("a", 300)
	for _, c := range []struct{ name, in, want string }{
		{"empty", "", ""},
		{"255 bytes", long[:255], long[:255]},
		{"256 bytes", long[:256], long[:252] + "..."},
		{"a rune over the cut", strings.Repeat("a", 251) + strings.Repeat("é", 10), strings.Repeat("a", 251) + "..."},
		{"four-byte runes", strings.Repeat("𝄞", 100), strings.Repeat("𝄞", 63) + "..."},
		{"not UTF-8", "a\xffb", "a\uFFFDb"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := TruncateText(c.in)
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if len(got) > 255 || !utf8.ValidString(got) {
				t.Errorf("%d bytes: %q", len(got), got)
			}
		})
	}
	for n := range 300 { // every way the cut can hit a rune
		got := TruncateText(strings.Repeat("a", n) + strings.Repeat("€", 200))
		if len(got) > 255 || len(got) < 250 || !utf8.ValidString(got) {
			t.Errorf("%d: %d bytes: %q", n, len(got), got)
		}
	}
}

func TestReplyNames(t *testing.T) {
	for code, want := range map[uint16]string{
		200: "REPLY_SUCCESS", 311: "CONTENT_TOO_LARGE", 312: "NO_ROUTE", 313: "NO_CONSUMERS",
		320: "CONNECTION_FORCED", 402: "INVALID_PATH", 403: "ACCESS_REFUSED", 404: "NOT_FOUND",
		405: "RESOURCE_LOCKED", 406: "PRECONDITION_FAILED", 501: "FRAME_ERROR", 502: "SYNTAX_ERROR",
		503: "COMMAND_INVALID", 504: "CHANNEL_ERROR", 505: "UNEXPECTED_FRAME", 506: "RESOURCE_ERROR",
		530: "NOT_ALLOWED", 540: "NOT_IMPLEMENTED", 541: "INTERNAL_ERROR", 0: "", 999: "",
	} {
		if got := ReplyName(code); got != want {
			t.Errorf("%d is %q, want %q", code, got, want)
		}
		closes := code >= 500 && code < 600 || code == 320 || code == 402
		if ClosesConnection(code) != closes {
			t.Errorf("%d: ClosesConnection = %v", code, !closes)
		}
	}
}

func TestErrorTexts(t *testing.T) {
	for _, c := range []struct {
		err  *Error
		want Error
	}{
		{UnexpectedFrame(Frame{Type: 1, Channel: 1, Payload: []byte{0, 20, 0, 10, 0}}), Error{505, "type 1, all octets = <<0,20,0,10,0>>", 0, 0}},
		{ExpectedMethod(), Error{505, "expected method frame, got non method frame instead", 0, 0}},
		{ExpectedHeader(60, 40), Error{505, "expected content header for class 60, got non content header frame instead", 60, 40}},
		{ExpectedBody(60, 40), Error{505, "expected content body, got non content body frame instead", 60, 40}},
		{BodyTooLong(60, 40), Error{501, "content body frame exceeds remaining content size", 60, 40}},
	} {
		mustFail(t, c.err, c.want)
	}
	if got, want := ExpectedMethod().Error(), "UNEXPECTED_FRAME - expected method frame, got non method frame instead"; got != want {
		t.Errorf("reply text %q, want %q", got, want)
	}
	if got := ReplyText(404, strings.Repeat("x", 300)); len(got) != 255 || !strings.HasPrefix(got, "NOT_FOUND - xxx") || !strings.HasSuffix(got, "x...") {
		t.Errorf("reply text %q", got)
	}
}

func TestOctets(t *testing.T) {
	for in, want := range map[string]string{
		"":                 "<<>>",
		"abc":              `<<"abc">>`,
		"a\"b\\c":          `<<"a\"b\\c">>`,
		"\b\t\n\v\f\r\x1b": `<<"\b\t\n\v\f\r\e">>`,
		"abc\x00":          "<<97,98,99,0>>",
		"\x7f":             "<<127>>",
		"é":                "<<195,169>>",
	} {
		if got := octets([]byte(in)); got != want {
			t.Errorf("%q is %s, want %s", in, got, want)
		}
	}
}
