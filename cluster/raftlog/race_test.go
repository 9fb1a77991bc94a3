//go:build race

package raftlog

// thorough divides what tests try exhaustively: the race detector makes a store that is opened ten
// times dearer, and finds nothing more in the hundredth.
const thorough = 8
