package cli

// DefaultDataDir is the data directory of every verb by default.
const DefaultDataDir = "./tidewaiter-data"
