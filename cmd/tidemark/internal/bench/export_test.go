package bench

// MemoryText is the line of a report about memory over time.
var MemoryText = memoryText
