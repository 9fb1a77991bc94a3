package wire

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// goldenBodies are bodies of frames, and what they mean. Those with another encoding than ours have it in ours.
var goldenBodies = []struct {
	name, bytes, ours string
	want              Composite
}{
	{"open", "00 53 10 c0[01 a1[63]]", "", &Open{ContainerID: "c", MaxFrameSize: 4294967295, ChannelMax: 65535}},
	{
		"open with all", "00 53 10 c0[0a a1[63] a1[68] 70 00020000 60 003f 70 00007530 40 40 e0[01 a3 01 61] a3[62] c1[02 a3[6b] 52 07]]",
		"00 53 10 c0[0a a1[63] a1[68] 70 00020000 60 003f 70 00007530 40 40 f0{00000001 a3 01 61} f0{00000001 a3 01 62} c1[02 a3[6b] 52 07]]",
		&Open{
			ContainerID: "c", Hostname: "h", MaxFrameSize: 131072, ChannelMax: 63, IdleTimeOut: 30000, OfferedCapabilities: []string{"a"},
			DesiredCapabilities: []string{"b"}, Properties: MapBytes("\xc1\x06\x02\xa3\x01k\x52\x07"),
		},
	},
	{
		"open by symbol, list32, long string", "00 a3 0e 616d71703a6f70656e3a6c697374 d0{00000001 b1{63}}",
		"00 53 10 c0[01 a1[63]]", &Open{ContainerID: "c", MaxFrameSize: 4294967295, ChannelMax: 65535},
	},
	{
		"begin by ulong", "00 80 0000000000000011 c0[04 40 43 52 0a 43]", "00 53 11 c0[04 40 43 52 0a 43]",
		&Begin{IncomingWindow: 10, HandleMax: 4294967295},
	},
	{
		"attach", "00 53 12 c0[07 a1[6c] 43 42 50 00 50 00 00 53 28 45 00 53 29 c0[01 a1[2f7175657565732f]]]",
		"00 53 12 c0[07 a1[6c] 43 42 50 00 40 00 53 28 45 00 53 29 c0[01 a1[2f7175657565732f]]]",
		&Attach{
			Name: "l", Source: &Source{ExpiryPolicy: "session-end"},
			Target: &Target{Address: Some("/queues/"), ExpiryPolicy: "session-end"},
		},
	},
	{
		"attach to a coordinator", "00 53 12 c0[07 a1[6c] 43 42 40 40 40 00 53 30 45]", "",
		&Attach{Name: "l", SndSettleMode: 2, Target: &Coordinator{}},
	},
	{
		"flow", "00 53 13 c0[09 43 52 64 52 01 52 64 43 43 52 0a 40 41]", "",
		&Flow{
			NextIncomingID: Some[uint32](0), IncomingWindow: 100, NextOutgoingID: 1, OutgoingWindow: 100, Handle: Some[uint32](0),
			DeliveryCount: Some[uint32](0), LinkCredit: Some[uint32](10), Drain: true,
		},
	},
	{
		"transfer", "00 53 14 c0[06 43 52 07 a0[74] 43 42 42]", "00 53 14 c0[05 43 52 07 a0[74] 43 42]",
		&Transfer{DeliveryID: Some[uint32](7), DeliveryTag: []byte("t"), MessageFormat: Some[uint32](0), Settled: Some(false)},
	},
	{"disposition", "00 53 15 c0[05 41 52 07 40 41 00 53 24 45]", "", &Disposition{Role: true, First: 7, Settled: true, State: State{Kind: StateAccepted}}},
	{
		"disposition modified", "00 53 15 c0[05 42 43 43 42 00 53 27 c0[02 41 41]]", "00 53 15 c0[05 42 43 43 40 00 53 27 c0[02 41 41]]",
		&Disposition{Last: Some[uint32](0), State: State{Kind: StateModified, Modified: Modified{DeliveryFailed: true, UndeliverableHere: true}}},
	},
	{
		"disposition received", "00 53 15 c0[05 41 43 40 40 00 53 23 c0[02 43 44]]", "",
		&Disposition{Role: true, State: State{Kind: StateReceived}},
	},
	{
		"disposition rejected", "00 53 15 c0[05 41 43 40 41 00 53 25 c0[01 00 53 1d c0[01 a3[63]]]]", "",
		&Disposition{Role: true, Settled: true, State: State{Kind: StateRejected, Rejected: Rejected{Error: &Error{Condition: "c"}}}},
	},
	{
		"disposition with a transaction", "00 53 15 c0[05 41 43 40 40 00 53 34 c0[02 a0[74] 40]]", "-",
		&Disposition{Role: true, State: State{Kind: StateTransactional, Transactional: &TransactionalState{TxnID: []byte("t")}}},
	},
	{"disposition with an unknown state", "00 53 15 c0[05 41 43 40 40 00 53 99 45]", "-", &Disposition{Role: true, State: State{Kind: StateOther}}},
	{"detach", "00 53 16 c0[02 43 41]", "", &Detach{Closed: true}},
	{"end", "00 53 17 45", "", &End{}},
	{"close", "00 53 18 c0[01 00 53 1d c0[02 a3[63] a1[64]]]", "", &Close{Error: &Error{Condition: "c", Description: "d"}}},
	{
		"sasl-mechanisms of one", "00 53 40 c0[01 a3[504c41494e]]", "00 53 40 c0[01 f0{00000001 a3 05 504c41494e}]",
		&SASLMechanisms{SASLServerMechanisms: []string{"PLAIN"}},
	},
	{"sasl-init", "00 53 41 c0[02 a3[504c41494e] a0[]]", "", &SASLInit{Mechanism: "PLAIN", InitialResponse: []byte{}}},
	{"sasl-outcome", "00 53 44 c0[01 50 00]", "", &SASLOutcome{}},
	{"header", "00 53 70 c0[02 41 50 09]", "", &Header{Durable: true, Priority: Some[byte](9)}},
	{"properties", "00 53 73 c0[03 53 07 40 a1[2f712f71]]", "", &Properties{MessageID: RawValue("\x53\x07"), To: []byte("/q/q")}},
}

func TestGoldenBodies(t *testing.T) {
	for _, c := range goldenBodies {
		t.Run(c.name, func(t *testing.T) {
			in := mustHex(t, c.bytes)
			code, err := Peek(in)
			if err != nil {
				t.Fatal(err)
			}
			got := zero(code)
			rest, err := Decode(append(in, "rest"...), got)
			if err != nil || string(rest) != "rest" {
				t.Fatalf("%v, rest %q", err, rest)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Fatalf("%+v\nwant %+v", got, c.want)
			}
			if c.ours == "-" {
				return // never sent
			}
			want := in
			if c.ours != "" {
				want = mustHex(t, c.ours)
			}
			if b := Append(nil, got); !bytes.Equal(b, want) {
				t.Fatalf("encoded % x\nwant    % x", b, want)
			}
		})
	}
}

// What is encoded is read back, whatever is in it, by number and by symbol.
func TestRoundTrip(t *testing.T) {
	for _, empty := range allComposites() {
		t.Run(empty.facts().name, rapid.MakeCheck(func(t *rapid.T) {
			want := draw(t, zero(Code(empty)))
			b := Append(nil, want)
			got := zero(Code(empty))
			if rest, err := Decode(b, got); err != nil || len(rest) != 0 {
				t.Fatalf("%v, %d octets left of % x", err, len(rest), b)
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("%+v\nwant %+v", got, want)
			}
			symbol := AppendSymbol([]byte{described}, "amqp:"+empty.facts().name+":list")
			again := zero(Code(empty))
			if _, err := Decode(append(symbol, b[3:]...), again); err != nil || !reflect.DeepEqual(again, want) {
				t.Fatalf("by symbol: %+v, %v", again, err)
			}
			if again := Append(nil, again); !bytes.Equal(again, b) {
				t.Fatalf("% x\nagain % x", b, again)
			}
		}))
	}
}

// A struct that is decoded into again keeps nothing of the last time.
func TestReusedStructKeepsNothing(t *testing.T) {
	transfer, flow, disposition := new(Transfer), new(Flow), new(Disposition)
	for _, c := range []struct {
		into        Composite
		full, empty string
	}{
		{transfer, "00 53 14 c0[0b 52 05 52 07 a0[74] 52 01 41 41 50 00 00 53 24 45 41 41 41]", "00 53 14 c0[01 43]"},
		{flow, "00 53 13 c0[0b 52 01 52 02 52 03 52 04 52 05 52 06 52 07 52 08 41 41 c1[00]]", "00 53 13 c0[04 40 43 43 43]"},
		{disposition, "00 53 15 c0[06 41 52 07 52 08 41 00 53 24 45 41]", "00 53 15 c0[02 42 43]"},
	} {
		if _, err := Decode(mustHex(t, c.full), c.into); err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(mustHex(t, c.empty), c.into); err != nil {
			t.Fatal(err)
		}
		if want := zero(Code(c.into)); !reflect.DeepEqual(c.into, want) {
			t.Errorf("%+v\nwant %+v", c.into, want)
		}
	}
}

func TestRefusedBodies(t *testing.T) {
	for _, c := range []struct{ name, bytes, why string }{
		{"nothing", "", "frame body: no described value"},
		{"no descriptor", "c0 04 01 a1 01 63", "frame body: no described value"},
		{"descriptor of a wrong type", "00 41 45", "a descriptor is neither ulong nor symbol"},
		{"unknown descriptor", "00 53 0f 45", "frame body: unknown descriptor"},
		{"unknown symbol", "00 a3 01 61 45", "frame body: unknown descriptor"},
		{"vendor's descriptor", "00 80 0000000100000010 45", "frame body: unknown descriptor"},
		{"descriptor of 6000 descriptors", strings.Repeat("00", 6000), whyDeep},
		{"no list", "00 53 10 41", "open: no list"},
		{"map for a list", "00 53 10 c1 01 00", "open: no list"},
		{"no value", "00 53 10", "open: no list"},
		{"mandatory field missing", "00 53 10 45", "open: field container-id: it is mandatory and missing"},
		{"mandatory field null", "00 53 11 c0[04 40 43 40 43]", "begin: field incoming-window: it is mandatory and missing"},
		{"wrong type", "00 53 10 c0 04 01 a3 01 63", "open: field container-id: wrong type"},
		{"wrong width", "00 53 14 c0 04 01 60 00 01", "transfer: field handle: wrong type"},
		{"unknown constructor", "00 53 14 c0 02 01 57", "transfer: field handle: wrong type"},
		{"no UTF-8", "00 53 10 c0 04 01 a1 01 ff", "open: field container-id: no UTF-8"},
		{"no ASCII", "00 53 41 c0 04 01 a3 01 ff", "sasl-init: field mechanism: no ASCII"},
		{"one symbol that is no ASCII", "00 53 40 c0[01 a3[ff]]", "sasl-mechanisms: field sasl-server-mechanisms: no ASCII"},
		{"second symbol that is no ASCII", "00 53 40 c0[01 e0[02 a3 01 61 01 ff]]", "sasl-mechanisms: field sasl-server-mechanisms: no ASCII"},
		{"symbols of a wrong type", "00 53 40 c0[01 52 01]", "sasl-mechanisms: field sasl-server-mechanisms: wrong type"},
		{"count beyond the fields", "00 53 17 c0 03 02 40 40", "end: a count does not fit"},
		{"count beyond the list", "00 53 14 d0 00000005 ffffffff 43", "transfer: a count does not fit"},
		{"size beyond the frame", "00 53 14 d0 ffffffff 00000001 43", "transfer: a value is longer than what is left"},
		{"octets behind the last field", "00 53 14 c0 03 01 43 43", "transfer: a count does not fit"},
		{"field cut off", "00 53 14 c0 03 02 43 52", "transfer: field delivery-id: a value is longer than what is left"},
		{"list without count", "00 53 14 c0 00", "transfer: a value is longer than what is left"},
		{"nested composite", "00 53 12 c0[07 a1[6c] 43 42 40 40 40 00 53 29 c0[01 43]]", "attach: field target: target: field address: wrong type"},
		{"a source for a target", "00 53 12 c0[07 a1[6c] 43 42 40 40 40 00 53 28 45]", "attach: field target: wrong type"},
		{"state that is no described value", "00 53 15 c0[05 41 43 40 40 41]", "disposition: field state: no described value"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := mustHex(t, c.bytes)
			code, err := Peek(in)
			if err == nil {
				_, err = Decode(in, zero(code))
			}
			mustFail(t, err, ConditionDecode, c.why)
		})
	}
}

func TestNestingInPerformatives(t *testing.T) {
	nested := func(n int) []byte {
		m := []byte{cNull}
		for range n {
			m = EndMap(append(AppendNull(StartMap(nil)), m...), 0, 1)
		}
		return Append(nil, &Flow{Properties: m})
	}
	// The performative's own list is the first.
	if _, err := Decode(nested(maxDepth-1), new(Flow)); err != nil {
		t.Errorf("32 deep: %v", err)
	}
	_, err := Decode(nested(maxDepth), new(Flow))
	mustFail(t, err, ConditionDecode, "flow: field properties: "+whyDeep)
}

func TestErrorIsShort(t *testing.T) {
	e := Errorf(ConditionNotFound, "%s", strings.Repeat("ü\xff", 600))
	if n := len(e.Description); n > 1024 || n < 1020 || !strings.HasPrefix(e.Description, "ü\uFFFDü") || strings.HasSuffix(e.Description, "\xc3") {
		t.Errorf("%d octets: %q", n, e.Description)
	}
	if s := Errorf(ConditionNotFound, "no queue").Error(); s != "amqp:not-found: no queue" {
		t.Error(s)
	}
	if s := (&Error{Condition: ConditionNotFound}).Error(); s != "amqp:not-found" {
		t.Error(s)
	}
}

func TestOutcomeNamed(t *testing.T) {
	for _, o := range []Outcome{StateAccepted, StateRejected, StateReleased, StateModified} {
		if OutcomeNamed(o.Symbol()) != o {
			t.Errorf("%s is not %d", o.Symbol(), o)
		}
	}
	for _, s := range []string{"", "amqp:received:list", "amqp:accepted"} {
		if OutcomeNamed(s) != NoState {
			t.Errorf("%q is an outcome", s)
		}
	}
}
