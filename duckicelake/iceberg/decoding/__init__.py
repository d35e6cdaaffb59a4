"""Reading Avro files that others wrote: whatever they hold, the answer is what they say or a refusal, in bounded time and memory."""
