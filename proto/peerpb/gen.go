// Package peerpb is what nodes say to each other beside raft.
//
// What is in session.proto travels with each message of a queue and has generated
// code for that (MarshalVT, UnmarshalVT); the rest goes through package proto.
package peerpb

//go:generate go run ../internal/generate protoc-gen-go=paths=source_relative protoc-gen-go-vtproto:session.proto=paths=source_relative,features=marshal+unmarshal+size protoc-gen-go-grpc:peer.proto=paths=source_relative
