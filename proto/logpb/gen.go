// Package logpb is what quorate writes to disk: the headers of queue log
// entries, the catalog's log entries, and the snapshots of both machines.
//
// Every top-level message carries a version. Fields are added, never reused;
// what an entry means never changes once it is written.
//
// What is in log.proto is read and written with each message of a queue and has
// generated code for that (MarshalVT, UnmarshalVT); the rest goes through Marshal
// and Unmarshal. Both codecs write the same bytes.
package logpb

//go:generate go run ../internal/generate protoc-gen-go=paths=source_relative protoc-gen-go-vtproto:log.proto=paths=source_relative,features=marshal+unmarshal+size+pool,pool=github.com/quorate/quorate/proto/logpb.Entry,pool=github.com/quorate/quorate/proto/logpb.Command,pool=github.com/quorate/quorate/proto/logpb.Enqueue,pool=github.com/quorate/quorate/proto/logpb.Settle,pool=github.com/quorate/quorate/proto/logpb.Session
