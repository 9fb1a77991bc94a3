package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestGeneratedFileIsFresh(t *testing.T) {
	want, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile("../../" + output)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Errorf("%s is stale: run go generate ./amqp/v091/wire", output)
	}
}

func TestGoName(t *testing.T) {
	for _, c := range []struct {
		parts []string
		want  string
	}{
		{[]string{"queue", "declare-ok"}, "QueueDeclareOK"},
		{[]string{"basic", "get"}, "BasicGet"},
		{[]string{"no-ack"}, "NoAck"},
		{[]string{"message-id"}, "MessageID"},
	} {
		if got := goName(c.parts...); got != c.want {
			t.Errorf("goName(%q) = %q, want %q", c.parts, got, c.want)
		}
	}
}

func TestUnknownTypeIsRefused(t *testing.T) {
	const text = `<amqp><domain name="d" type="quux"/>
		<class name="c" index="1"><method name="m" index="2"><field name="f" domain="d"/></method></class></amqp>`
	if _, err := readSpec([]byte(text)); err == nil || !strings.Contains(err.Error(), "quux") {
		t.Errorf("err = %v, want one that names the type", err)
	}
}

// Nine bits need a second octet.
func TestNinthBitStartsAnOctet(t *testing.T) {
	fields := make([]field, 9)
	for i := range fields {
		fields[i] = field{Name: string(rune('a' + i)), Type: "bit"}
	}
	if n := leadingBits(fields); n != 8 {
		t.Errorf("%d bits share the first octet, want 8", n)
	}
	if n := leadingBits(fields[8:]); n != 1 {
		t.Errorf("%d bits share the second octet, want 1", n)
	}
}
