package wire

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// Sections for tests.
const (
	hexHeader      = "00 53 70 c0[02 41 50 09]"
	hexDelivery    = "00 53 71 c1[02 a3[782d61] 43]"
	hexAnnotations = "00 53 72 c1[02 a3[782d6f70742d62] 52 07]"
	hexProperties  = "00 53 73 c0[03 a1[6964] 40 a1[2f712f71]]"
	hexApplication = "00 53 74 c1[04 a1[6b] a1[76] a1[6e] 40]"
	hexData        = "00 53 75 a0[68656c6c6f]"
	hexSequence    = "00 53 76 c0[02 52 01 52 02]"
	hexValue       = "00 53 77 a1[68656c6c6f]"
	hexFooter      = "00 53 78 c1[02 a3[782d63] 43]"
)

func mustParse(t *testing.T, b []byte) *Message {
	t.Helper()
	m := new(Message)
	if err := m.Parse(b); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestSectionsOfMessage(t *testing.T) {
	head := hexHeader + hexDelivery + hexAnnotations
	bare := hexProperties + hexApplication
	for _, c := range []struct {
		name, head, bare, body, footer string
		kind                           BodyKind
	}{
		{"all, data", head, bare, hexData, hexFooter, BodyData},
		{"three data", head, bare, hexData + hexData + hexData, "", BodyData},
		{"sequences", "", bare, hexSequence + hexSequence, "", BodySequence},
		{"value", hexHeader, "", hexValue, hexFooter, BodyValue},
		{"null", "", "", "00 53 77 40", "", BodyValue},
		{"described value", "", "", "00 53 77 00 53 01 00 a3[61] 45", "", BodyValue},
		{"value whose inside is wrong", "", "", "00 53 77 c0[07 57 57]", "", BodyValue},
		{"data of four octets of length", "", "", "00 53 75 b0{68656c6c6f}", "", BodyData},
		{"sections by symbol", "", "", "00 a3[616d71703a646174613a62696e617279] a0[68656c6c6f]", "", BodyData},
		{"properties by ulong and list32", "", "00 80 0000000000000073 d0{00000003 a1[6964] 40 a1[2f712f71]}", hexData, "", BodyData},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := mustParse(t, mustHex(t, c.head+c.bare+c.body+c.footer))
			for _, s := range []struct {
				name string
				got  []byte
				want string
			}{{"bare", m.Bare, c.bare + c.body + c.footer}, {"body", m.Body, c.body}, {"footer", m.Footer, c.footer}} {
				if !bytes.Equal(s.got, mustHex(t, s.want)) {
					t.Errorf("%s % x, want % x", s.name, s.got, mustHex(t, s.want))
				}
			}
			if m.Kind != c.kind {
				t.Errorf("body of kind %d, want %d", m.Kind, c.kind)
			}
			checkSections(t, m, c.head, c.bare)
		})
	}
}

func checkSections(t *testing.T, m *Message, head, bare string) {
	if want := strings.Contains(head, hexHeader); m.HasHeader != want || m.Header.Durable != want || m.Header.Priority.Value != map[bool]byte{true: 9}[want] {
		t.Errorf("header %+v", m.Header)
	}
	if v, ok := m.Annotations.Get("x-opt-b"); ok != strings.Contains(head, hexAnnotations) || ok && v.Unsigned() != 7 {
		t.Errorf("annotation %v, %v", v, ok)
	}
	if v, ok := m.ApplicationProperties.Get("k"); ok != strings.Contains(bare, hexApplication) || ok && string(v.Bytes()) != "v" {
		t.Errorf("application property %v, %v", v, ok)
	}
	p := Properties{To: []byte("rest")}
	if err := m.ReadProperties(&p); err != nil {
		t.Fatal(err)
	}
	if bare != "" && (string(p.MessageID.Value().Bytes()) != "id" || string(p.To) != "/q/q") || bare == "" && p.To != nil {
		t.Errorf("properties %+v", p)
	}
}

func TestBodies(t *testing.T) {
	m := mustParse(t, mustHex(t, hexData+"00 53 75 a0[]"+"00 53 75 b0{21}"+hexFooter))
	var all []string
	for d := range m.Data {
		all = append(all, string(d))
	}
	if !slices.Equal(all, []string{"hello", "", "!"}) {
		t.Errorf("data %q", all)
	}
	if v, err := m.BodyValue(); err != nil || v.Type != Null {
		t.Errorf("value %v, %v", v, err)
	}
	m = mustParse(t, mustHex(t, hexValue))
	if v, err := m.BodyValue(); err != nil || string(v.Bytes()) != "hello" {
		t.Errorf("value %v, %v", v, err)
	}
	for d := range m.Data {
		t.Errorf("a value has data %q", d)
	}
	m = mustParse(t, mustHex(t, "00 53 77 c0[01 57]"))
	_, err := m.BodyValue()
	mustFail(t, err, ConditionDecode, whyConstructor)
}

func TestMalformedMessages(t *testing.T) {
	for _, c := range []struct{ name, bytes, why string }{
		{"empty", "", "no body"},
		{"no body", hexHeader + hexProperties, "no body"},
		{"garbage", "68656c6c6f", "no described value"},
		{"unknown section", "00 53 79 45" + hexData, "unknown section"},
		{"unknown symbol", "00 a3[61] 45" + hexData, "unknown section"},
		{"performative", "00 53 14 45" + hexData, "unknown section"},
		{"two headers", hexHeader + hexHeader + hexData, "repeated section"},
		{"two values", hexValue + hexValue, "repeated section"},
		{"two footers", hexData + hexFooter + hexFooter, "repeated section"},
		{"properties before header", hexProperties + hexHeader + hexData, "sections out of order"},
		{"properties behind body", hexData + hexProperties, "sections out of order"},
		{"data behind footer", hexData + hexFooter + hexData, "sections out of order"},
		{"data and value", hexData + hexValue, "a body of two kinds"},
		{"data and sequence", hexData + hexSequence, "a body of two kinds"},
		{"truncated", "00 53 75 a0 06 68656c6c6f", whyShort},
		{"truncated descriptor", hexData + "00 53", whyShort},
		{"header is a map", "00 53 70 c1[00]" + hexData, "header: no list"},
		{"header with a wrong type", "00 53 70 c0[01 43]" + hexData, "header: field durable: wrong type"},
		{"annotations are a list", "00 53 72 45" + hexData, "a section has the wrong type"},
		{"annotation's key a string", "00 53 72 c1[02 a1[782d61] 43]" + hexData, "an annotation's key"},
		{"reserved annotation", "00 53 72 c1[02 a3[6162] 43]" + hexData, "an annotation's key"},
		{"reserved annotation of a number", "00 53 72 c1[02 44 43]" + hexData, "an annotation's key"},
		{"reserved delivery annotation", "00 53 71 c1[02 a3[78] 43]" + hexData, "an annotation's key"},
		{"annotations with a wrong count", "00 53 72 c1[04 a3[782d61] 43]" + hexData, whyShort},
		{"annotations too deep", "00 53 72 c1[02 a3[782d61] " + strings.Repeat("00 44 ", 65) + "43]" + hexData, whyDeep},
		{"properties are a map", "00 53 73 c1[00]" + hexData, "a section has the wrong type"},
		{"properties without a count", "00 53 73 c0 00", whyShort},
		{"properties with 14 fields", "00 53 73 c0[0e" + strings.Repeat("40", 14) + "]" + hexData, whyCount},
		{"application property with a symbol for a key", "00 53 74 c1[02 a3[61] 43]" + hexData, "the key of an application property"},
		{"application property that is a list", "00 53 74 c1[02 a1[61] 45]" + hexData, "an application property is not simple"},
		{"data is a string", "00 53 75 a1[61]", "a section has the wrong type"},
		{"sequence is a map", "00 53 76 c1[00]", "a section has the wrong type"},
		{"footer is a list", hexData + "00 53 78 45", "a section has the wrong type"},
		{"value of 4 GiB", "00 53 77 b0 ffffffff 61", whyShort},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := new(Message).Parse(mustHex(t, c.bytes))
			mustFail(t, err, ConditionDecode, "failed to parse message: ")
			mustFail(t, err, ConditionDecode, c.why)
		})
	}
}

// Who reads requests takes annotations of any names, but names they must have.
func TestAnnotationsOfRequests(t *testing.T) {
	if err := new(Message).ParseRequest(mustHex(t, "00 53 71 c1[02 a3[78] 43] 00 53 72 c1[02 a3[6162] 43]"+hexData)); err != nil {
		t.Error(err)
	}
	mustFail(t, new(Message).ParseRequest(mustHex(t, "00 53 72 c1[02 a1[782d61] 43]"+hexData)), ConditionDecode, "an annotation's key")
}

// Fields of the properties are looked at when they are needed.
func TestPropertiesOfWrongTypes(t *testing.T) {
	m := mustParse(t, mustHex(t, "00 53 73 c0[03 40 40 43]"+hexData))
	mustFail(t, m.ReadProperties(new(Properties)), ConditionDecode, "properties: field to: wrong type")
}

func TestAppendedMessage(t *testing.T) {
	b := Append(nil, &Header{Durable: true})
	at := len(StartAnnotations(b))
	b = EndMap(AppendUint(AppendSymbol(StartMap(StartAnnotations(b)), "x-opt-a"), 1), at, 1)
	b = Append(b, &Properties{Subject: []byte("200")})
	at = len(StartApplicationProperties(b))
	b = EndMap(AppendString(AppendString(StartMap(StartApplicationProperties(b)), "k"), "v"), at, 1)
	for name, body := range map[BodyKind][]byte{BodyData: AppendData(nil, []byte("hello")), BodyValue: AppendNull(StartValue(nil))} {
		m := mustParse(t, append(bytes.Clone(b), body...))
		if m.Kind != name || !m.Header.Durable || !bytes.Equal(m.Body, body) {
			t.Errorf("%+v", m)
		}
		if v, _ := m.Annotations.Get("x-opt-a"); v.Unsigned() != 1 {
			t.Errorf("annotation %v", v)
		}
		if v, _ := m.ApplicationProperties.Get("k"); string(v.Bytes()) != "v" {
			t.Errorf("application property %v", v)
		}
	}
}
