package wire

import (
	"bytes"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

func TestDecodeHeader(t *testing.T) {
	for _, c := range []struct {
		name, payload string
		want          Error
	}{
		{"nothing", ``, Error{501, "type 2, all octets = <<>>: unknown_frame", 0, 0}},
		{"too short", `003c 0000 00000000000000`, Error{501, "type 2, all octets = <<0,60,0,0,0,0,0,0,0,0,0>>: unknown_frame", 0, 0}},
		{"weight", `003c 0001 0000000000000000 0000`, Error{505, "expected content header for class 60, got non content header frame instead", 60, 40}},
		{"class", `0032 0000 0000000000000000 0000`, Error{505, "expected content header for class 60, got one for class 50 instead", 60, 40}},
		{"600 MiB", `003c 0000 0000000025800000 0000`, Error{501, "content body size 629145600 exceeds maximum allowed size 536870912", 60, 40}},
		{"greatest number", `003c 0000 ffffffffffffffff 0000`, Error{501, "content body size 18446744073709551615 exceeds maximum allowed size 536870912", 60, 40}},
		{"one octet too much", `003c 0000 0000000020000001 0000`, Error{501, "content body size 536870913 exceeds maximum allowed size 536870912", 60, 40}},
	} {
		t.Run(c.name, func(t *testing.T) {
			mustFail(t, second(DecodeHeader(mustHex(t, c.payload), 60, 40)), c.want)
		})
	}
	h, err := DecodeHeader(mustHex(t, `003c 0000 0000000020000000 1000 02`), ClassBasic, 40)
	if err != nil {
		t.Fatal(err)
	}
	if want := (ContentHeader{60, 512 << 20, []byte{0x10, 0, 2}}); !reflect.DeepEqual(h, want) {
		t.Errorf("decoded %+v, want %+v", h, want)
	}
}

// allProperties has every property there is; correlation-id is not UTF-8.
const allProperties = `fffc
	02 6374 02 6365 00000007 01 61 74 01 01 62 56
	02 09 01 ff 02 7274 02 3130 03 6d6964 0102030405060708 01 54 01 75 02 6170 01 63`

func TestParseProperties(t *testing.T) {
	raw := mustHex(t, allProperties)
	got, err := ParseProperties(raw)
	if err != nil {
		t.Fatal(err)
	}
	want := Properties{
		Present:      0xfffc,
		DeliveryMode: 2, Priority: 9, Timestamp: 0x0102030405060708,
		ContentType: []byte("ct"), ContentEncoding: []byte("ce"), Headers: []byte("\x01at\x01\x01bV"),
		CorrelationID: []byte("\xff"), ReplyTo: []byte("rt"), Expiration: []byte("10"), MessageID: []byte("mid"),
		Type: []byte("T"), UserID: []byte("u"), AppID: []byte("ap"), ClusterID: []byte("c"),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("parsed %+v\nwant   %+v", got, want)
	}
	if b := AppendProperties(nil, &got); !bytes.Equal(b, raw) {
		t.Errorf("encoded % x\nwant    % x", b, raw)
	}
	if v, ok := got.Header("a"); !ok || !reflect.DeepEqual(v, Bool(true)) {
		t.Errorf("header a is %+v, %v", v, ok)
	}
	if !got.Has(FlagClusterID|FlagContentType) || new(Properties).Has(FlagHeaders) {
		t.Error("Has is wrong")
	}
}

func TestMalformedProperties(t *testing.T) {
	list := Error{Code: 502, Text: "malformed content properties"}
	table := Error{Code: 502, Text: "malformed field table"}
	for _, c := range []struct {
		name, raw string
		want      Error
	}{
		{"nothing", ``, list},
		{"half the flags", `80`, list},
		{"further flags", `0001 0000`, list},
		{"unknown flag", `0002 00`, list},
		{"value missing", `8000`, list},
		{"string too short", `8000 02 61`, list},
		{"timestamp too short", `0040 00000000000000`, list},
		{"delivery mode missing", `1000`, list},
		{"octet behind", `1000 02 00`, list},
		{"octet behind nothing", `0000 00`, list},
		{"table length too short", `2000 000000`, list},
		{"table past the end", `2000 00000004 01 61 56`, table},
		{"unknown tag", `2000 00000004 01 61 5a 00`, table},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw := mustHex(t, c.raw)
			mustFail(t, second(ParseProperties(raw)), c.want)
			out, err := EditProperties([]byte("kept"), raw, &Edit{Remove: FlagExpiration})
			mustFail(t, err, c.want)
			if string(out) != "kept" {
				t.Errorf("dst is %q", out)
			}
		})
	}
	deep := AppendProperties(nil, &Properties{Present: FlagHeaders, Headers: nested(200, TagTable)})
	mustFail(t, second(ParseProperties(deep)), table)
}

// withHeaders encodes a list with expiration and these headers.
func withHeaders(headers Table) []byte {
	return AppendProperties(nil, &Properties{
		Present: FlagContentType | FlagHeaders | FlagExpiration,
		Headers: AppendFields(nil, headers), ContentType: []byte("text"), Expiration: []byte("100"),
	})
}

func TestEditProperties(t *testing.T) {
	one, two, three := Int64(1), Int64(2), Int64(3)
	without := AppendProperties(nil, &Properties{Present: FlagContentType | FlagExpiration, ContentType: []byte("text"), Expiration: []byte("100")})
	for _, c := range []struct {
		name      string
		raw, want []byte
		edit      Edit
	}{
		{"nothing", withHeaders(Table{{"a", one}, {"a", two}}), withHeaders(Table{{"a", one}, {"a", two}}), Edit{}},
		{"expiration", without, mustHex(t, `8000 04 74657874`), Edit{Remove: FlagExpiration}},
		{"what is not there", without, without, Edit{Remove: FlagPriority, RemoveHeaders: []string{"a"}}},
		{"all headers", withHeaders(Table{{"a", one}}), without, Edit{Remove: FlagHeaders}},
		{"header out", withHeaders(Table{{"a", one}, {"BCC", two}, {"b", three}, {"BCC", one}}), withHeaders(Table{{"a", one}, {"b", three}}),
			Edit{RemoveHeaders: []string{"BCC"}}},
		{"last header out", withHeaders(Table{{"BCC", two}}), withHeaders(nil), Edit{RemoveHeaders: []string{"BCC"}}},
		{"header behind the others", withHeaders(Table{{"b", one}, {"a", one}}), withHeaders(Table{{"b", one}, {"a", one}, {"x", two}, {"y", three}}),
			Edit{SetHeaders: Table{{"x", two}, {"y", three}}}},
		{"header replaced in place", withHeaders(Table{{"a", one}, {"x", String("old")}, {"b", one}, {"x", one}}),
			withHeaders(Table{{"a", one}, {"x", two}, {"b", one}, {"y", three}}), Edit{SetHeaders: Table{{"y", three}, {"x", two}}}},
		{"removed and set", withHeaders(Table{{"x", one}, {"b", one}}), withHeaders(Table{{"b", one}, {"x", two}}),
			Edit{RemoveHeaders: []string{"x"}, SetHeaders: Table{{"x", two}}}},
		{"first header", without, withHeaders(Table{{"x", two}}), Edit{SetHeaders: Table{{"x", two}}}},
		{"new headers for old", withHeaders(Table{{"a", one}}), withHeaders(Table{{"x", two}}), Edit{Remove: FlagHeaders, SetHeaders: Table{{"x", two}}}},
		{"no properties at all", []byte{0, 0}, mustHex(t, `2000 0000000c 02 7878 6c 0000000000000002`), Edit{SetHeaders: Table{{"xx", two}}}},
		{"more than the usual number", withHeaders(Table{{"17", one}, {"a", one}}), withHeaders(append(Table{{"17", two}, {"a", one}}, numbered(0, 17)...)),
			Edit{SetHeaders: append(numbered(0, 17), Field{"17", two})}},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw := bytes.Clone(c.raw)
			got, err := EditProperties([]byte("dst"), raw, &c.edit)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got[3:], c.want) {
				t.Errorf("got  %q\nwant %q", got[3:], c.want)
			}
			if !bytes.Equal(raw, c.raw) {
				t.Error("raw has changed")
			}
		})
	}
}

// numbered returns fields whose names are the numbers from..to-1.
func numbered(from, to int) Table {
	var t Table
	for i := from; i < to; i++ {
		t = append(t, Field{string(rune('0'+i/10)) + string(rune('0'+i%10)), Int64(2)})
	}
	return t
}

// editSimply does to a decoded table what EditProperties does to bytes.
func editSimply(t Table, e *Edit) Table {
	var out Table
	done := map[string]bool{}
	removed := map[string]bool{}
	for _, n := range e.RemoveHeaders {
		removed[n] = true
	}
	for _, f := range t {
		v, set := e.SetHeaders.Get(f.Name)
		switch {
		case removed[f.Name] || done[f.Name]:
		case set:
			out, done[f.Name] = append(out, Field{f.Name, v}), true
		default:
			out = append(out, f)
		}
	}
	for _, f := range e.SetHeaders {
		if !done[f.Name] {
			out = append(out, f)
		}
	}
	return out
}

func TestEditPropertiesAgreesWithTheSimpleWay(t *testing.T) {
	names := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"})
	rapid.Check(t, func(t *rapid.T) {
		var headers Table
		for range rapid.IntRange(0, 8).Draw(t, "headers") {
			headers = append(headers, Field{names.Draw(t, "name"), drawValue(t, 2)})
		}
		e := Edit{RemoveHeaders: rapid.SliceOfN(names, 0, 2).Draw(t, "remove")}
		for _, n := range rapid.SliceOfNDistinct(names, 0, 3, rapid.ID[string]).Draw(t, "set") {
			e.SetHeaders = append(e.SetHeaders, Field{n, drawValue(t, 2)})
		}
		got, err := EditProperties(nil, withHeaders(headers), &e)
		if err != nil {
			t.Fatal(err)
		}
		if want := withHeaders(editSimply(headers, &e)); !bytes.Equal(got, want) {
			t.Fatalf("got  %q\nwant %q", got, want)
		}
	})
}
