package main

// composite is a described list.
type composite struct {
	name   string
	code   byte
	fields []field
}

// field is one field of a composite. A field that is mandatory has no default; without either the
// zero value means that it is not there, unless it is optional: then that can be told apart.
type field struct {
	name  string
	typ   string
	rule  rule
	value string // default: as Go writes it
}

type rule byte

const (
	plain rule = iota
	mandatory
	optional
	defaulted
)

func may(name, typ string) field  { return field{name: name, typ: typ} }
func must(name, typ string) field { return field{name: name, typ: typ, rule: mandatory} }
func opt(name, typ string) field  { return field{name: name, typ: typ, rule: optional} }
func or(name, typ string, def string) field {
	return field{name: name, typ: typ, rule: defaulted, value: def}
}
func extended(fields ...field) []field { return append(fields, capabilities...) }

// capabilities end each performative that begins something.
var capabilities = []field{
	may("offered-capabilities", "symbols"),
	may("desired-capabilities", "symbols"),
	may("properties", "map"),
}

// composites are the performatives, SASL frames, delivery states, termini and sections of AMQP 1.0, parts 2
// to 5.
var composites = []composite{
	{"open", 0x10, extended(
		must("container-id", "string"),
		may("hostname", "string"),
		or("max-frame-size", "uint", "4294967295"),
		or("channel-max", "ushort", "65535"),
		may("idle-time-out", "uint"),
		may("outgoing-locales", "symbols"),
		may("incoming-locales", "symbols"),
	)},
	{"begin", 0x11, extended(
		opt("remote-channel", "ushort"),
		must("next-outgoing-id", "uint"),
		must("incoming-window", "uint"),
		must("outgoing-window", "uint"),
		or("handle-max", "uint", "4294967295"),
	)},
	{"attach", 0x12, extended(
		must("name", "string"),
		must("handle", "uint"),
		must("role", "boolean"),
		or("snd-settle-mode", "ubyte", "2"),
		may("rcv-settle-mode", "ubyte"),
		may("source", "source"),
		may("target", "target"),
		may("unsettled", "map"),
		may("incomplete-unsettled", "boolean"),
		opt("initial-delivery-count", "uint"),
		may("max-message-size", "ulong"),
	)},
	{"flow", 0x13, []field{
		opt("next-incoming-id", "uint"),
		must("incoming-window", "uint"),
		must("next-outgoing-id", "uint"),
		must("outgoing-window", "uint"),
		opt("handle", "uint"),
		opt("delivery-count", "uint"),
		opt("link-credit", "uint"),
		opt("available", "uint"),
		may("drain", "boolean"),
		may("echo", "boolean"),
		may("properties", "map"),
	}},
	{"transfer", 0x14, []field{
		must("handle", "uint"),
		opt("delivery-id", "uint"),
		may("delivery-tag", "binary"),
		opt("message-format", "uint"),
		opt("settled", "boolean"),
		may("more", "boolean"),
		opt("rcv-settle-mode", "ubyte"),
		may("state", "state"),
		may("resume", "boolean"),
		may("aborted", "boolean"),
		may("batchable", "boolean"),
	}},
	{"disposition", 0x15, []field{
		must("role", "boolean"),
		must("first", "uint"),
		opt("last", "uint"),
		may("settled", "boolean"),
		may("state", "state"),
		may("batchable", "boolean"),
	}},
	{"detach", 0x16, []field{
		must("handle", "uint"),
		may("closed", "boolean"),
		may("error", "error"),
	}},
	{"end", 0x17, []field{may("error", "error")}},
	{"close", 0x18, []field{may("error", "error")}},
	{"error", 0x1d, []field{
		must("condition", "symbol"),
		may("description", "string"),
		may("info", "map"),
	}},

	{"received", 0x23, []field{
		must("section-number", "uint"),
		must("section-offset", "ulong"),
	}},
	{"accepted", 0x24, nil},
	{"rejected", 0x25, []field{may("error", "error")}},
	{"released", 0x26, nil},
	{"modified", 0x27, []field{
		may("delivery-failed", "boolean"),
		may("undeliverable-here", "boolean"),
		may("message-annotations", "map"),
	}},
	{"declared", 0x33, []field{must("txn-id", "binary")}},
	{"transactional-state", 0x34, []field{
		must("txn-id", "binary"),
		may("outcome", "state"),
	}},

	{"source", 0x28, []field{
		opt("address", "string"),
		may("durable", "uint"),
		or("expiry-policy", "symbol", `"session-end"`),
		may("timeout", "uint"),
		may("dynamic", "boolean"),
		may("dynamic-node-properties", "map"),
		may("distribution-mode", "symbol"),
		may("filter", "map"),
		may("default-outcome", "state"),
		may("outcomes", "symbols"),
		may("capabilities", "symbols"),
	}},
	{"target", 0x29, []field{
		opt("address", "string"),
		may("durable", "uint"),
		or("expiry-policy", "symbol", `"session-end"`),
		may("timeout", "uint"),
		may("dynamic", "boolean"),
		may("dynamic-node-properties", "map"),
		may("capabilities", "symbols"),
	}},
	{"delete-on-close", 0x2b, nil},
	{"coordinator", 0x30, []field{may("capabilities", "symbols")}},

	{"sasl-mechanisms", 0x40, []field{must("sasl-server-mechanisms", "symbols")}},
	{"sasl-init", 0x41, []field{
		must("mechanism", "symbol"),
		may("initial-response", "binary"),
		may("hostname", "string"),
	}},
	{"sasl-challenge", 0x42, []field{must("challenge", "binary")}},
	{"sasl-response", 0x43, []field{must("response", "binary")}},
	{"sasl-outcome", 0x44, []field{
		must("code", "ubyte"),
		may("additional-data", "binary"),
	}},

	{"header", 0x70, []field{
		may("durable", "boolean"),
		opt("priority", "ubyte"),
		opt("ttl", "uint"),
		may("first-acquirer", "boolean"),
		may("delivery-count", "uint"),
	}},
	{"properties", 0x73, []field{
		may("message-id", "any"),
		may("user-id", "binary"),
		may("to", "text"),
		may("subject", "text"),
		may("reply-to", "text"),
		may("correlation-id", "any"),
		may("content-type", "token"),
		may("content-encoding", "token"),
		opt("absolute-expiry-time", "timestamp"),
		opt("creation-time", "timestamp"),
		may("group-id", "text"),
		opt("group-sequence", "uint"),
		may("reply-to-group-id", "text"),
	}},
}
