"""The scripted server with a tool that is finished by others: it answers when another call says so.

python tests/fakes/patient_server.py --era legacy
"""

import sys
from pathlib import Path

# It is started as a file, in any directory.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fakes.stdio_server import Server, flags
from tests.fakes.stdio_wire import Json, content


class Patient(Server):
    """`begun`: calls that wait, with their tokens; `cancelled`: how many of them were."""

    begun: list[tuple[object, object]]
    cancelled = 0

    def tool_begin(self, number: object) -> None:
        """The first step, and then nothing until somebody says more."""
        self.begun = [*getattr(self, "begun", []), (number, self.token)]
        self.step(1)

    def tool_step(self, _: object, n: int) -> Json:
        """One more step of the call that was begun last."""
        self.step(n)
        return content("told")

    def tool_finish(self, _: object, text: str = "done") -> Json:
        """Now it is answered."""
        number, _ = self.begun[-1]
        self.reply(number, result=content(text))
        return content("finished")

    def tool_count(self, _: object) -> Json:
        """How many were begun, and how many of these were cancelled."""
        return content(f"{len(getattr(self, 'begun', []))} {self.cancelled}")

    def noted(self, method: str, params: Json) -> None:
        self.cancelled += method == "notifications/cancelled"
        super().noted(method, params)

    def step(self, n: int) -> None:
        self.notify("notifications/progress", progressToken=self.begun[-1][1], progress=n)


if __name__ == "__main__":
    Patient(flags()).run()
