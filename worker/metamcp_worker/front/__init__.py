"""A front put together: its application, the steps of its calls, messages of the supervisor."""
